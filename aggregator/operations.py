"""What an operator does with the keys of a federation: enrol and remove members, renew (design section 4).

Every change of membership is one new roster version, durable in the operator's directory before anything that relies on
it is written anywhere else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from aggregator.homes import (
    LOCK_FILE,
    ROSTER_FILE,
    OperatorHome,
    install_roster,
    load_operator_home,
    load_server_home,
)
from feddrm.contract.authority import certificate_hash, check_validity, issue, pem
from feddrm.contract.errors import InputError, MalformedError, VerificationError
from feddrm.contract.files import atomic_write, read_bounded
from feddrm.contract.fingerprint import member_fingerprint
from feddrm.contract.identity import Role, Subject, load_tls_key
from feddrm.contract.kit import make_kit
from feddrm.contract.locks import exclusive
from feddrm.contract.request import Request, verify_request
from feddrm.contract.roster import MAXIMUM_MEMBERS, Member, Roster, next_version, sign_roster
from feddrm.contract.signed import Signed

_MAXIMUM_REQUEST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Candidate:
    """A verified request, as the operator looks at it before signing.

    Attributes:
        change: "new", "renewed" (all keys as in the roster) or "changed keys" (as dangerous as new).
    """

    path: Path
    request: Request
    fingerprint: str
    change: Literal["new", "renewed", "changed keys"]

    @property
    def kit(self) -> Path:
        """Where its kit goes: beside the request."""
        return self.path.with_name(f"{self.request.name}.kit")


def read_requests(home: OperatorHome, paths: Sequence[Path]) -> tuple[Candidate, ...]:
    """Read and verify requests; nothing is signed.

    Raises:
        InputError: a file is no request, a name comes twice or is another role's.
        VerificationError: a proof in one fails.
    """
    found: list[Candidate] = []
    for path in paths:
        try:
            signed = Signed.from_json(read_bounded(path, limit=_MAXIMUM_REQUEST))
            _refuse_kit(path, signed)
            request = verify_request(signed)
        except MalformedError as error:
            raise InputError(f"{path} is not a request: {error.message}") from error
        except VerificationError as error:
            raise VerificationError(f"{path}: {error.message}", remedy="Ask the member for a new request.") from error
        for other in found:
            if other.request.name == request.name:
                raise InputError(f"{path}: a request of {request.name} was given twice.")
            _refuse_shared_key(path, request, other.request)
        shown = member_fingerprint(request.role, request.name, request.identity)
        found.append(Candidate(path, request, shown, _change(home.roster, request, path)))
    return tuple(found)


def _refuse_kit(path: Path, signed: Signed) -> None:
    """Say so where a kit was taken for the request beside which it lies; whether it is sound is not looked at."""
    try:
        says = json.loads(signed.body)["format"]
    except (ValueError, TypeError, KeyError):
        return
    if isinstance(says, str) and says.startswith("feddrm kit "):
        raise InputError(
            f"{path} is a kit, which enroll makes; it takes the .request file that the member's init made.",
            remedy="The kit is for the member, who joins with it.",
        )


def _change(roster: Roster, request: Request, path: Path) -> Literal["new", "renewed", "changed keys"]:
    change: Literal["new", "renewed", "changed keys"] = "new"
    for member in roster.members:
        if member.name != request.name:
            _refuse_shared_key(path, request, member)
            continue
        if member.role != request.role:
            raise InputError(
                f"{path}: the name {request.name} belongs to a {member.role} already.",
                remedy="Ask for a request under another name.",
            )
        same = (member.identity, member.sealing) == (request.identity, request.sealing)
        change = "renewed" if same else "changed keys"
    return change


def _refuse_shared_key(path: Path, request: Request, other: Member | Request) -> None:
    if request.identity == other.identity or request.sealing == other.sealing:
        raise InputError(
            f"{path}: {request.name} and {other.name} have a key in common.",
            remedy="Every member makes keys of its own; ask who copied whose.",
        )


def enroll(operator: Path, candidates: Sequence[Candidate], server: Path | None, now_ms: int) -> Roster:
    """Sign what the operator approved: one new roster, and a kit beside each request.

    Raises:
        InputError: a file cannot be written, or the roster would be too long.
        AlreadyRunningError: another command is changing the roster.
    """
    with exclusive(operator / LOCK_FILE, what="Another enrolment"):
        home = load_operator_home(operator)
        _check_ready(home, server, now_ms)
        members = {member.name: member for member in home.roster.members}
        certificates: dict[str, bytes] = {}
        for candidate in candidates:
            request = candidate.request
            _change(home.roster, request, candidate.path)
            subject = Subject(home.federation, Role(request.role), request.name)
            certificate = issue(home.authority, request.public_key(), subject, now_ms)
            certificates[request.name] = pem(certificate)
            members[request.name] = Member(
                name=request.name,
                role=request.role,
                identity=request.identity,
                sealing=request.sealing,
                sealing_signature=request.sealing_signature,
                certificate=certificate_hash(certificate),
            )
        signed, roster = _next_roster(home, tuple(members.values()), now_ms)
        for candidate in candidates:
            kit = make_kit(home.key, home.anchor, home.address, certificates[candidate.request.name], signed)
            atomic_write(candidate.kit, kit.to_json().encode())
        _install(server, signed, now_ms)
    return roster


def remove_members(operator: Path, names: Sequence[str], server: Path | None, now_ms: int) -> Roster:
    """Issue a roster without these members.

    Raises:
        InputError: a name is not in the roster, or a file cannot be written.
    """
    with exclusive(operator / LOCK_FILE, what="Another enrolment"):
        home = load_operator_home(operator)
        _check_ready(home, server, now_ms)
        known = {member.name for member in home.roster.members}
        for name in names:
            if name not in known:
                raise InputError(f"The roster lists no member named {name}.")
        rest = tuple(member for member in home.roster.members if member.name not in set(names))
        signed, roster = _next_roster(home, rest, now_ms)
        _install(server, signed, now_ms)
    return roster


def renew(operator: Path, server: Path | None, now_ms: int) -> Roster:
    """Renew what expires and needs no member: the roster, the operator's certificate, the server's with `server`.

    Raises:
        InputError: a file cannot be written.
    """
    with exclusive(operator / LOCK_FILE, what="Another enrolment"):
        home = load_operator_home(operator)
        _check_ready(home, server, now_ms)
        subject = Subject(home.federation, Role.OPERATOR, "operator")
        key = load_tls_key(operator / "tls.key").public_key()
        atomic_write(operator / "tls.pem", pem(issue(home.authority, key, subject, now_ms)))
        if server is not None:
            subject = Subject(home.federation, Role.COORDINATOR, "coordinator")
            key = load_tls_key(server / "tls.key").public_key()
            atomic_write(server / "tls.pem", pem(issue(home.authority, key, subject, now_ms, address=home.address)))
        signed, roster = _next_roster(home, home.roster.members, now_ms)
        _install(server, signed, now_ms)
    return roster


def _next_roster(home: OperatorHome, members: tuple[Member, ...], now_ms: int) -> tuple[Signed, Roster]:
    if len(members) > MAXIMUM_MEMBERS:
        raise InputError(f"A roster lists at most {MAXIMUM_MEMBERS} members.")
    version, issued_ms, expires_ms = next_version(home.roster, now_ms)
    roster = Roster(
        federation=home.federation,
        version=version,
        issued_ms=issued_ms,
        expires_ms=expires_ms,
        operator=home.anchor.operator,
        round_key=home.roster.round_key,
        members=members,
    )
    signed = sign_roster(roster, home.key)
    atomic_write(home.directory / ROSTER_FILE, signed.to_json().encode())
    return signed, roster


def _check_ready(home: OperatorHome, server: Path | None, now_ms: int) -> None:
    """Before anything is signed: it must take effect, or a server that refuses it would lag behind."""
    check_validity(
        home.authority.certificate,
        now_ms,
        what="The federation's root certificate",
        remedy="Found a new federation; this one's members cannot be renewed any more.",
    )
    if server is not None and load_server_home(server).anchor != home.anchor:
        raise InputError(f"{server} belongs to another federation than {home.directory}.")


def _install(server: Path | None, signed: Signed, now_ms: int) -> None:
    if server is not None:
        install_roster(server, signed, now_ms)
