"""The roster: all members' public keys, signed by the operator, with a rising version and an expiry (design 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field, model_validator

from feddrm.contract import labels
from feddrm.contract.authority import CLOCK_SKEW_MS, DAY_MS, day
from feddrm.contract.documents import Base64, Hash, canonical, parse_body
from feddrm.contract.errors import InputError, NotAuthorisedError, VerificationError
from feddrm.contract.fingerprint import member_fingerprint
from feddrm.contract.identity import check_identity_key, sealing_public_key, verify_sealing_key
from feddrm.contract.names import Document, Name
from feddrm.contract.signed import Signed, sign, verify

ROSTER_DAYS: Final = 365
RESERVED_NAMES: Final = frozenset({"operator", "coordinator"})
MAXIMUM_MEMBERS: Final = 1000

Milliseconds = Annotated[int, Field(ge=0, lt=1 << 53)]
Version = Annotated[int, Field(ge=1, lt=1 << 53)]


class Member(Document):
    """A silo or querier.

    Attributes:
        identity: Ed25519 public key, 32 bytes.
        sealing: MLKEM768-X25519 public key, 1216 bytes.
        sealing_signature: the identity key's signature on the sealing key, 64 bytes.
        certificate: SHA-256 of the TLS certificate's DER form.
    """

    name: Name
    role: Literal["silo", "querier"]
    identity: Hash
    sealing: Base64
    sealing_signature: Base64
    certificate: Hash

    @property
    def fingerprint(self) -> str:
        """What this member reads to whoever asks whether the entry is its own."""
        return member_fingerprint(self.role, self.name, self.identity)


class Roster(Document):
    """Everybody's keys. `operator` and `round_key` are Ed25519 public keys (32 bytes); times are Unix milliseconds."""

    federation: Name
    version: Version
    issued_ms: Milliseconds
    expires_ms: Milliseconds
    operator: Hash
    round_key: Hash
    members: Annotated[tuple[Member, ...], Field(max_length=MAXIMUM_MEMBERS)]

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.expires_ms <= self.issued_ms:
            raise ValueError("expires_ms must be after issued_ms")
        _distinct("name", (member.name for member in self.members))
        _distinct("certificate", (member.certificate for member in self.members))
        _distinct("sealing key", (member.sealing for member in self.members))
        # One key in two hands would let a signature of one count as a signature of the other.
        keys = [member.identity for member in self.members]
        _distinct("signing key", (*keys, self.operator, self.round_key))
        if any(member.name in RESERVED_NAMES for member in self.members):
            raise ValueError(f"members: the names {' and '.join(sorted(RESERVED_NAMES))} are taken")
        return self

    @property
    def silos(self) -> tuple[Member, ...]:
        """The silos, in roster order."""
        return tuple(member for member in self.members if member.role == "silo")

    @property
    def queriers(self) -> tuple[Member, ...]:
        """The queriers, in roster order."""
        return tuple(member for member in self.members if member.role == "querier")

    def find(self, name: str, role: str) -> Member:
        """The member of that name and role.

        Raises:
            NotAuthorisedError: there is none.
        """
        for member in self.members:
            if member.name == name and member.role == role:
                return member
        raise NotAuthorisedError(f"The roster (version {self.version}) lists no {role} named {name}.")

    def check_current(self, now_ms: int) -> None:
        """Refuse a roster that has expired or comes from the future.

        Raises:
            VerificationError: it does.
        """
        if now_ms >= self.expires_ms:
            raise VerificationError(
                f"The roster (version {self.version}) expired on {day(self.expires_ms)}.",
                remedy="Ask the operator for a new one (feddrm-aggregator roster renew).",
            )
        if self.issued_ms > now_ms + CLOCK_SKEW_MS:
            raise VerificationError(
                f"The roster (version {self.version}) was issued on {day(self.issued_ms)}, which is in the future.",
                remedy="Check this machine's clock and date.",
            )


def _distinct(what: str, values: Iterable[object]) -> None:
    listed = list(values)
    if len(set(listed)) != len(listed):
        raise ValueError(f"members: a {what} appears twice")


def sign_roster(roster: Roster, operator: Ed25519PrivateKey) -> Signed:
    """Sign a roster as the operator."""
    return sign(operator, labels.ROSTER, canonical(roster))


def verify_roster(signed: Signed, *, federation: str, operator: bytes) -> Roster:
    """Verify the operator's signature, then parse, then check every key in it.

    Args:
        operator: the operator's Ed25519 key from the trust anchor, never from the roster itself.

    Returns:
        the roster; whether it is current is `Roster.check_current`'s matter.

    Raises:
        VerificationError: signature, federation or a member's sealing key is wrong.
        MalformedError: not a roster, or an unusable key.
    """
    body = verify(signed, labels.ROSTER, operator, what="The roster")
    roster = parse_body(body, Roster, what="The roster")
    if roster.federation != federation:
        raise VerificationError(f"The roster is of federation {roster.federation}, not of {federation}.")
    if roster.operator != operator:
        raise VerificationError("The roster names another operator key than the one that signed it.")
    check_identity_key(roster.round_key)
    for member in roster.members:
        check_member(member)
    return roster


def check_member(member: Member) -> None:
    """Check one member's keys and that its identity key vouches for its sealing key.

    Raises:
        VerificationError: the sealing key is not signed by the identity key.
        MalformedError: a key is unusable.
    """
    check_identity_key(member.identity)
    sealing_public_key(member.sealing)
    verify_sealing_key(member.identity, member.name, member.sealing, member.sealing_signature)


def roster_hash(body: bytes) -> bytes:
    """SHA-256 that names a roster, over the signed bytes as received (32 bytes)."""
    return hashlib.sha256(labels.ROSTER + body).digest()


@dataclass(frozen=True, slots=True)
class RosterDifference:
    """What a person approves: names, and for changed members which keys."""

    added: tuple[Member, ...]
    removed: tuple[Member, ...]
    changed: tuple[tuple[Member, tuple[str, ...]], ...]
    round_key_changed: bool

    @property
    def adds_trust(self) -> bool:
        """Whether anybody gains something: a member is new, or a key differs."""
        return bool(self.added or self.changed or self.round_key_changed)

    def lines(self) -> tuple[str, ...]:
        """One line a difference, for a person."""
        lines = [f"added    {m.role} {m.name}, fingerprint {m.fingerprint}" for m in self.added]
        lines += [f"removed  {m.role} {m.name}" for m in self.removed]
        lines += [
            f"changed  {m.role} {m.name}: {', '.join(what)}, fingerprint {m.fingerprint}" for m, what in self.changed
        ]
        if self.round_key_changed:
            lines.append("changed  coordinator: round key")
        return tuple(lines) or ("no member or key differs (only version and validity)",)


def difference(old: Roster, new: Roster) -> RosterDifference:
    """Compare two rosters member by member."""
    before = {member.name: member for member in old.members}
    after = {member.name: member for member in new.members}
    changed = []
    for name in before.keys() & after.keys():
        fields = {"role": "role", "identity": "identity key", "sealing": "sealing key", "certificate": "certificate"}
        what = [word for key, word in fields.items() if getattr(before[name], key) != getattr(after[name], key)]
        if what:
            changed.append((after[name], tuple(what)))
    return RosterDifference(
        added=tuple(after[name] for name in sorted(after.keys() - before.keys())),
        removed=tuple(before[name] for name in sorted(before.keys() - after.keys())),
        changed=tuple(sorted(changed, key=lambda entry: entry[0].name)),
        round_key_changed=old.round_key != new.round_key,
    )


def next_version(old: Roster | None, now_ms: int, *, days: int = ROSTER_DAYS) -> tuple[int, int, int]:
    """(version, issued_ms, expires_ms) of the roster after `old`.

    Raises:
        InputError: the clock stands before the old roster's issue.
    """
    if old is not None and now_ms + CLOCK_SKEW_MS < old.issued_ms:
        raise InputError(
            f"This machine's clock is before the issue of roster version {old.version} ({day(old.issued_ms)}).",
            remedy="Set the clock.",
        )
    return (old.version + 1 if old else 1), now_ms, now_ms + days * DAY_MS
