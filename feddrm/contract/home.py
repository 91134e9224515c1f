"""The directories of members: what `init` and `join` leave behind, and how everybody else reads it (design section 4).

keys/     tls.key identity.key sealing.key (0600; made here, never copied)
startup/  federation.root federation.kit roster.signed [roster.pending roster.approvals]: signed, not editable
local/    a silo's own, editable files
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509

from feddrm.contract.authority import Address, check_validity
from feddrm.contract.errors import InputError, MalformedError, VerificationError
from feddrm.contract.files import atomic_write, file_error, make_directory, read_bounded, sync_directory, write_new
from feddrm.contract.fingerprint import member_fingerprint
from feddrm.contract.identity import Credentials, MemberKeys, Role, Subject, private_pem
from feddrm.contract.kit import (
    COMMANDS,
    RENEWAL,
    FederationRoot,
    Kit,
    check_current,
    check_own,
    load_federation_root,
    reopen_kit,
    verify_kit,
)
from feddrm.contract.pin import PINNED_FILE, Offer, RosterPin
from feddrm.contract.policy import AGENT_TEMPLATE, DATA_TEMPLATE, POLICY_FILE, TEMPLATE
from feddrm.contract.request import make_request
from feddrm.contract.roster import Roster
from feddrm.contract.signed import Signed

ROOT_FILE: Final = "federation.root"
KIT_FILE: Final = "federation.kit"
_MAXIMUM_KIT: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class MemberHome:
    """A silo's or querier's directory after `join`, verified against its trust anchor.

    Attributes:
        subject: own federation, role and name.
        certificate: own TLS certificate.
        tls: what transport needs.
        roster: the pinned roster at the time of loading; `pin` reads it anew.
    """

    directory: Path
    subject: Subject
    anchor: FederationRoot
    address: Address
    keys: MemberKeys = field(repr=False)
    certificate: x509.Certificate
    tls: Credentials = field(repr=False)
    pin: RosterPin
    signed_roster: Signed = field(repr=False)
    roster: Roster = field(repr=False)

    @property
    def name(self) -> str:
        """Own name."""
        return self.subject.name

    @property
    def federation(self) -> str:
        """The federation's name."""
        return self.anchor.federation

    @property
    def local(self) -> Path:
        """A silo's editable files."""
        return self.directory / "local"

    def check_current(self, now_ms: int) -> None:
        """Refuse to work with an expired certificate or roster, or one that does not list the own keys.

        Raises:
            VerificationError: one of them is expired or from the future, or other keys stand under the own name.
            NotAuthorisedError: the pinned roster does not list this member any more.
        """
        check_validity(self.certificate, now_ms, what=f"The certificate of {self.name}", remedy=RENEWAL)
        self.roster.check_current(now_ms)
        own = self.roster.find(self.name, self.subject.role.value)
        if own.identity != self.keys.identity_public or own.sealing != self.keys.sealing.public():
            raise VerificationError(
                f"The pinned roster lists other keys for {self.name} than this directory holds.",
                remedy="Do not go on; call the operator.",
            )


SiloHome = MemberHome
QueryHome = MemberHome


@dataclass(frozen=True, slots=True)
class Made:
    """What `init` made."""

    request: Path
    fingerprint: str


def init_member(directory: Path, name: str, role: Role) -> Made:
    """Make a member's keys and its request, DIR/NAME.request; a silo also gets templates of its local files.

    Raises:
        InputError: the directory holds keys already, or cannot be written.
    """
    keys_directory = directory / "keys"
    if keys_directory.exists():
        raise InputError(
            f"{keys_directory} exists already and is not overwritten.",
            remedy="Choose another directory; its keys may be enrolled.",
        )
    keys = MemberKeys.generate()
    request = make_request(name, role, keys)
    path = directory / f"{name}.request"
    make_directory(directory)
    write_new(path, request.to_json().encode())
    if role is Role.SILO:
        local = directory / "local"
        make_directory(local)
        for file, text in ((POLICY_FILE, TEMPLATE), ("data.toml", DATA_TEMPLATE), ("agent.toml", AGENT_TEMPLATE)):
            if not (local / file).exists():
                write_new(local / file, text.encode(), mode=0o600)
    # The keys last and all at once: their directory means that init is complete.
    building = directory / ".keys.new"
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(mode=0o700)
        keys.save(building)
        building.rename(keys_directory)
        sync_directory(directory)
    except OSError as error:
        raise file_error(error, keys_directory) from error
    return Made(path, member_fingerprint(role.value, name, keys.identity_public))


@dataclass(frozen=True, slots=True)
class Joined:
    """What `join` did. `pending`: the kit's roster differs from the pinned one and waits for approval. `again`: this
    member had joined before, and has a renewed certificate now."""

    kit: Kit
    pending: bool
    again: bool


def join_member(directory: Path, kit_file: Path, fingerprint: str, role: Role, now_ms: int) -> Joined:
    """Check a kit against the out-of-band fingerprint and this directory's keys, then store it.

    A first join pins the kit's roster: its signer is the operator whose fingerprint was given. A later one (a renewed
    certificate) leaves the pinned roster as it is, and the kit's waits for approval like any other.

    Raises:
        InputError: no keys here, no kit, no fingerprint, or joined to another federation before.
        VerificationError: the kit is swapped, changed, expired, or somebody else's.
        MalformedError: the file is no kit.
    """
    keys = load_keys(directory, role)
    try:
        signed = Signed.from_json(read_bounded(kit_file, limit=_MAXIMUM_KIT))
    except MalformedError as error:
        raise InputError(f"{kit_file} is not a kit, or is damaged.", remedy="Ask the operator for it again.") from error
    kit = verify_kit(signed, fingerprint)
    check_own(kit, role, keys)
    check_current(kit, now_ms)
    startup = directory / "startup"
    if startup.exists():
        anchor = load_federation_root(startup / ROOT_FILE)
        if anchor != kit.anchor:
            raise InputError(
                f"{directory} has joined federation {anchor.federation} under another operator key already.",
                remedy="Use a directory of its own for each federation.",
            )
        offer = RosterPin(startup, anchor).offer(kit.signed_roster, now_ms)
        atomic_write(startup / KIT_FILE, signed.to_json().encode())
        return Joined(kit, offer is Offer.PENDING, again=True)
    building = directory / ".startup.new"
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(mode=0o755)
        write_new(building / ROOT_FILE, kit.anchor.to_text())
        write_new(building / KIT_FILE, signed.to_json().encode())
        write_new(building / PINNED_FILE, kit.signed_roster.to_json().encode())
        building.rename(startup)
        sync_directory(directory)
    except OSError as error:
        raise file_error(error, startup) from error
    return Joined(kit, pending=False, again=False)


def load_keys(directory: Path, role: Role) -> MemberKeys:
    """A member's private keys.

    Raises:
        InputError: missing or damaged.
        NotAuthorisedError: other users may read them.
    """
    if not (directory / "keys").is_dir():
        raise InputError(
            f"{directory} holds no keys.", remedy=f"Make them: {COMMANDS[role]} init {directory} --name NAME"
        )
    return MemberKeys.load(directory / "keys")


def load_member_home(directory: Path, role: Role) -> MemberHome:
    """Read and verify a member's directory; call `check_current` before relying on it.

    Raises:
        InputError: not joined yet, another role's directory, or a file is damaged.
        NotAuthorisedError: other users may read a key.
        VerificationError: a signed file does not verify, or does not belong to these keys.
    """
    keys = load_keys(directory, role)
    startup = directory / "startup"
    if not startup.is_dir():
        raise InputError(
            f"{directory} has not joined a federation yet.",
            remedy=f"Run: {COMMANDS[role]} join NAME.kit --dir {directory} --fingerprint ...",
        )
    anchor = load_federation_root(startup / ROOT_FILE)
    try:
        kit = reopen_kit(Signed.from_json(read_bounded(startup / KIT_FILE, limit=_MAXIMUM_KIT)), anchor)
    except MalformedError as error:
        raise VerificationError(f"{startup / KIT_FILE} is damaged.", remedy="Join again with the kit.") from error
    if kit.subject.role is not role and kit.subject.role in COMMANDS:
        raise InputError(
            f"{directory} is a {kit.subject.role.value}'s directory, not a {role.value}'s.",
            remedy=f"Use it with {COMMANDS[kit.subject.role]}.",
        )
    check_own(kit, role, keys)
    pin = RosterPin(startup, anchor)
    signed_roster = pin.signed()
    return MemberHome(
        directory=directory,
        subject=kit.subject,
        anchor=anchor,
        address=kit.address,
        keys=keys,
        certificate=kit.certificate,
        tls=Credentials(anchor.root.encode(), kit.certificate_pem, private_pem(keys.tls)),
        pin=pin,
        signed_roster=signed_roster,
        roster=pin.roster(),
    )


def load_silo_home(directory: Path) -> SiloHome:
    """`load_member_home` of a silo."""
    return load_member_home(directory, Role.SILO)


def load_query_home(directory: Path) -> QueryHome:
    """`load_member_home` of a querier."""
    return load_member_home(directory, Role.QUERIER)
