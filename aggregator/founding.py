"""How a federation begins: root and operator key in one directory, the server's keys in another (design section 4)."""

from __future__ import annotations

import shutil
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator.homes import (
    FEDERATION_FILE,
    ROOT_FILE,
    ROSTER_FILE,
    SERVER_FILE,
)
from feddrm.contract.authority import Address, create_authority, issue, pem
from feddrm.contract.errors import InputError
from feddrm.contract.files import (
    file_error,
    make_directory,
    private_write,
    sync_directory,
    write_new,
)
from feddrm.contract.identity import Role, Subject, private_pem
from feddrm.contract.kit import FederationRoot
from feddrm.contract.roster import Roster, next_version, sign_roster


def found_federation(directory: Path, federation: str, address: Address, now_ms: int) -> FederationRoot:
    """Make DIR/operator and DIR/server with all their keys, and roster version 1 without members.

    Raises:
        InputError: one of them exists, or cannot be written.
    """
    operator, server = directory / "operator", directory / "server"
    for path in (operator, server):
        if path.exists():
            raise InputError(f"{path} exists already and is not overwritten.", remedy="Choose another directory.")
    authority = create_authority(federation, now_ms)
    operator_key, round_key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    anchor = FederationRoot(
        federation=federation,
        operator=operator_key.public_key().public_bytes_raw(),
        root=pem(authority.certificate).decode(),
    )
    version, issued_ms, expires_ms = next_version(None, now_ms)
    roster = Roster(
        federation=federation,
        version=version,
        issued_ms=issued_ms,
        expires_ms=expires_ms,
        operator=anchor.operator,
        round_key=round_key.public_key().public_bytes_raw(),
        members=(),
    )
    signed = sign_roster(roster, operator_key)
    operator_tls, server_tls = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    operator_subject = Subject(federation, Role.OPERATOR, "operator")
    server_subject = Subject(federation, Role.COORDINATOR, "coordinator")
    server_certificate = issue(authority, server_tls.public_key(), server_subject, now_ms, address=address)
    private = {
        operator: {
            "ca.key": private_pem(authority.key),
            "operator.key": private_pem(operator_key),
            "tls.key": private_pem(operator_tls),
        },
        server: {"tls.key": private_pem(server_tls), "round.key": private_pem(round_key)},
    }
    common = {ROOT_FILE: anchor.to_text(), ROSTER_FILE: signed.to_json().encode()}
    public = {
        operator: common
        | {
            "ca.pem": pem(authority.certificate),
            "tls.pem": pem(issue(authority, operator_tls.public_key(), operator_subject, now_ms)),
            FEDERATION_FILE: f'federation = "{federation}"\naddress = "{address}"\n'.encode(),
        },
        server: common | {"tls.pem": pem(server_certificate), SERVER_FILE: _server_text(federation, address)},
    }
    make_directory(directory)
    for path in (server, operator):
        _write_directory(path, private[path], public[path])
    return anchor


def _write_directory(path: Path, private: dict[str, bytes], public: dict[str, bytes]) -> None:
    building = path.with_name(f".{path.name}.new")
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(mode=0o700)
        for name, data in private.items():
            private_write(building / name, data)
        for name, data in public.items():
            write_new(building / name, data)
        building.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        raise file_error(error, path) from error


def _server_text(federation: str, address: Address) -> bytes:
    # A loopback address is for trials: then the server must not be reachable from elsewhere either.
    listen = address if address.is_loopback else Address("::", address.port)
    return (
        f'federation = "{federation}"\n\n'
        "# How silos and queriers reach this server; it stands in its certificate.\n"
        f'address = "{address}"\n\n'
        "# Where it listens on this machine.\n"
        f'listen = "{listen}"\n'
    ).encode()
