"""Who is guilty: judging transferable evidence, as anybody can who knows R0 and the identity keys of its roster.

A silo that follows the protocol is never found guilty, whatever the coordinator and all other silos put together: a
verdict rests on what the guilty silo itself signed, or on openings of hashes that it signed. What a coordinator may
have caused as well (an R3 or R4 over other frames than the judge was shown) proves nothing and is not judged here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from secagg.aborts import read_abort, read_statement
from secagg.bodies import Consistency, Keys, Masked, Shares, Unmask
from secagg.checks import (
    Fault,
    Roll,
    Signed,
    agreement,
    check_keys,
    ciphertext_hash,
    dealt_by,
    read,
    roll_of,
    session_id,
    transcript,
)
from secagg.dealing import expected_hash, opens, receive_deal, reconstruct
from secagg.errors import Rejected, UnsoundError, WireError
from secagg.exhibits import (
    Complaint,
    Conflict,
    Exhibit,
    Loose,
    WrongFrame,
    WrongOpening,
    WrongSecret,
    decode_exhibit,
    encode_exhibit,
)
from secagg.keys import KeyPair
from secagg.session import Announcement
from secagg.shamir import lagrange_at_zero
from secagg.wire import Frame, Step

_DECODERS = {
    Step.SHARES: Shares.decode,
    Step.MASKED: Masked.decode,
    Step.CONSISTENCY: Consistency.decode,
    Step.UNMASK: Unmask.decode,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`guilty` is a silo's name, or empty: nothing is proven against anybody."""

    guilty: str
    reason: str


class _Unproven(Exception):  # noqa: N818  ends in a verdict
    """The exhibit does not show what it claims."""


@dataclass(frozen=True, slots=True)
class _Case:
    """What a judge knows: R0, and the identity keys of its cohort."""

    announcement: Announcement
    announced: bytes
    keys: Mapping[str, bytes] = field(repr=False)

    def keys_of(self, frame: Frame) -> Signed[Keys]:
        """An R1 of this announcement. Raises Fault."""
        return read(frame, Step.KEYS, self.keys, self.announced, Keys.decode)

    def later(self, frame: Frame, roll: Roll, step: Step) -> Signed[Any]:
        """A frame of R2 to R5 of a session of this announcement, by a member of its U1. Raises Fault."""
        names = dict(roll)
        members = {name: key for name, key in self.keys.items() if name in names}
        return read(frame, step, members, session_id(self.announced, roll), _DECODERS[step])


def judge(exhibit: Frame | bytes, announce_body: bytes, members: Mapping[str, bytes]) -> Verdict:
    """Judge evidence about one announcement. Raises nothing, whatever the bytes are.

    Args:
        exhibit: evidence of a ProtocolViolation, Rejected or Failed; or a whole ABORT with its evidence attached, whose
            signer is guilty where its evidence accuses a silo and proves nothing.
        announce_body: R0, as the round key signed it. Evidence about another announcement proves nothing.
        members: Ed25519 keys (32 bytes) of the silos of the roster that R0 names.
    """
    try:
        announcement = Announcement.decode(announce_body)
    except (WireError, UnsoundError) as error:
        return Verdict("", f"no announcement to judge by: {error}")
    if not set(announcement.cohort) <= set(members):
        return Verdict("", "a roster without some of the announced silos")
    keys = {name: members[name] for name in announcement.cohort}
    case = _Case(announcement, hashlib.sha256(announce_body).digest(), keys)
    if isinstance(exhibit, Frame):
        return _judge_abort(case, exhibit)
    try:
        return _weigh(case, decode_exhibit(exhibit))
    except (WireError, _Unproven) as error:
        return Verdict("", f"proves nothing: {error}")


def _judge_abort(case: _Case, frame: Frame) -> Verdict:
    try:
        abort = read_abort(frame, case.keys)
    except Rejected as error:
        return Verdict("", error.reason)
    if abort.announcement != case.announced:
        return Verdict("", "an abort of another announcement")
    try:
        exhibit = decode_exhibit(frame.attachment)
    except WireError:
        return Verdict("", f"{abort.sender} left without evidence that can be judged")
    try:
        return _weigh(case, exhibit)
    except _Unproven as error:
        if not abort.blamed or isinstance(exhibit, Loose):
            return Verdict("", f"{abort.sender} left and proves nothing: {error}")
        return Verdict(abort.sender, f"signed a false accusation of {abort.blamed}: {error}")


def _weigh(case: _Case, exhibit: Exhibit) -> Verdict:
    """Raises _Unproven."""
    try:
        match exhibit:
            case WrongFrame():
                return _wrong_frame(case, exhibit)
            case Conflict():
                return _conflict(case, exhibit)
            case Complaint():
                return _complaint(case, exhibit)
            case WrongOpening():
                return _wrong_opening(case, exhibit)
            case WrongSecret():
                return _wrong_secret(case, exhibit)
            case Loose():
                raise _Unproven("signed frames that accuse no silo")
    except Fault as fault:
        raise _Unproven(fault.reason) from fault


def _wrong_frame(case: _Case, exhibit: WrongFrame) -> Verdict:
    frame = exhibit.frame
    try:
        if frame.step == Step.KEYS:
            check_keys(case.keys_of(frame).body, case.announcement.cohort)
        elif frame.step in _DECODERS:
            body = case.later(frame, exhibit.roll, Step(frame.step)).body
            if isinstance(body, Shares) and len(body.dealt) != len(exhibit.roll):
                return Verdict(frame.sender, "dealt shares to another set than U1")
    except Fault as fault:
        if fault.by_sender:
            return Verdict(frame.sender, fault.reason)
        raise
    raise _Unproven(f"a frame of {frame.sender or 'the coordinator'} that is no fault by itself")


def _conflict(case: _Case, exhibit: Conflict) -> Verdict:
    first, second = exhibit.first, exhibit.second
    if first.sender != second.sender:
        raise _Unproven("frames of two silos")
    steps = (first.step, second.step)
    if steps == (Step.KEYS, Step.KEYS):
        contrary = case.keys_of(first).body != case.keys_of(second).body
    elif first.step in _DECODERS and first.step == second.step:
        step = Step(first.step)
        contrary = case.later(first, exhibit.roll, step).body != case.later(second, exhibit.roll, step).body
    elif steps == (Step.CONSISTENCY, Step.UNMASK):
        agreed = case.later(first, exhibit.roll, Step.CONSISTENCY).body.agreement
        contrary = agreed != case.later(second, exhibit.roll, Step.UNMASK).body.agreement
    elif steps == (Step.UNMASK, Step.ABORT):
        case.later(first, exhibit.roll, Step.UNMASK)
        try:
            abort = read_statement(second, case.keys)
        except Rejected as error:
            raise _Unproven(error.reason) from error
        contrary = abort.announcement == case.announced and not abort.released
    else:
        raise _Unproven("frames of steps that do not exclude each other")
    if not contrary:
        raise _Unproven("frames that do not contradict each other")
    names = " and ".join(dict.fromkeys(Step(step).name for step in steps))
    return Verdict(first.sender, f"signed contradictory {names}")


def _complaint(case: _Case, exhibit: Complaint) -> Verdict:
    dealer, accuser = exhibit.dealer_keys.sender, exhibit.accuser_keys.sender
    cohort = case.announcement.cohort
    names = [name for name, _ in exhibit.roll]
    for entry in roll_of((exhibit.dealer_keys, exhibit.accuser_keys)):
        if entry not in exhibit.roll:
            raise _Unproven(f"an R1 of {entry[0]} that is not in the session")
    theirs, own = case.keys_of(exhibit.dealer_keys).body, case.keys_of(exhibit.accuser_keys).body
    check_keys(theirs, cohort)
    check_keys(own, cohort)
    shares = case.later(exhibit.shares, exhibit.roll, Step.SHARES).body
    if shares.sender != dealer or dealer == accuser or len(shares.dealt) != len(names):
        raise _Unproven("an R2 that is not what the dealer dealt to the accuser")
    pair = KeyPair.from_private(exhibit.private)
    if pair.public != own.transport_for(dealer, cohort):
        raise _Unproven("a private key that is not the accuser's for the dealer")
    entry = shares.dealt[names.index(accuser)]
    if ciphertext_hash(exhibit.ciphertext) != entry.ciphertext:
        raise _Unproven("a ciphertext other than the dealer signed")
    try:
        secret = pair.agree(theirs.transport_for(accuser, cohort))
        receive_deal(shares, entry, exhibit.ciphertext, me=accuser, secret=secret)
    except WireError as error:
        return Verdict(dealer, f"dealt {error}")
    raise _Unproven("a ciphertext that opens to what the dealer signed")


def _wrong_opening(case: _Case, exhibit: WrongOpening) -> Verdict:
    holder, owner = exhibit.unmask.sender, exhibit.shares.sender
    body = case.later(exhibit.unmask, exhibit.roll, Step.UNMASK).body
    u1, u2, u3 = ([name for name, _ in roll] for roll in (exhibit.roll, exhibit.dealt, exhibit.masked))
    seen = transcript(body.session, exhibit.dealt)
    # The agreement that the frame names binds U1, U2 with its R2 and U3, so these are what the holder answers to.
    if agreement(body.session, u1, u2, exhibit.masked, seen) != body.agreement:
        raise _Unproven("an R5 under another agreement")
    if len(body.openings) != len(u2):
        return Verdict(holder, "opened shares of another set than U2")
    if not set(dealt_by((exhibit.shares,))) <= set(exhibit.dealt):
        raise _Unproven(f"an R2 of {owner} that is not in the session")
    shares = case.later(exhibit.shares, exhibit.roll, Step.SHARES).body
    if len(shares.dealt) != len(u1):
        raise _Unproven(f"an R2 in which {owner} dealt to another set than U1")
    label, expected = expected_hash(shares.dealt[u1.index(holder)], mask_key=owner not in u3)
    if opens(expected, label, body.session, owner, holder, body.openings[u2.index(owner)]):
        raise _Unproven("a share that is the one that was dealt")
    return Verdict(holder, f"opened another share than {owner} dealt to it")


def _wrong_secret(case: _Case, exhibit: WrongSecret) -> Verdict:
    owner = exhibit.keys.sender
    names = [name for name, _ in exhibit.roll]
    holders = [name for name, _ in exhibit.openings]
    if not set(roll_of((exhibit.keys,))) <= set(exhibit.roll) or not set(holders) <= set(names):
        raise _Unproven("keys or holders that are not of the session")
    if len(holders) != case.announcement.threshold:
        raise _Unproven(f"{len(holders)} shares where {case.announcement.threshold} make a secret")
    keys = case.keys_of(exhibit.keys).body
    shares = case.later(exhibit.shares, exhibit.roll, Step.SHARES).body
    if shares.sender != owner or len(shares.dealt) != len(names):
        raise _Unproven("an R2 that is not what the owner dealt to U1")
    for holder, opening in exhibit.openings:
        label, expected = expected_hash(shares.dealt[names.index(holder)], mask_key=exhibit.mask_key)
        if not opens(expected, label, shares.session, owner, holder, opening):
            raise _Unproven(f"a share that {owner} did not deal to {holder}")
    weights = lagrange_at_zero([names.index(holder) + 1 for holder in holders])
    try:
        reconstruct(keys, weights, [opening.share for _, opening in exhibit.openings], mask_key=exhibit.mask_key)
    except WireError as error:
        return Verdict(owner, f"dealt {error}")
    raise _Unproven("shares that give the secret that was committed to")


def find_conflict(
    before: Iterable[Frame], after: Iterable[Frame], *, roll: Roll, announce_body: bytes, members: Mapping[str, bytes]
) -> tuple[str, bytes] | None:
    """A silo that signed two different frames of one step, with the evidence.

    Args:
        before, after: two requests for one step.
        roll: U1 of the session the requests belong to; empty for R1.
        members: Ed25519 keys of (at least) the cohort.
    """
    known = {frame.sender: frame for frame in before}
    for frame in after:
        other = known.get(frame.sender)
        if other is not None and other.body != frame.body:
            evidence = encode_exhibit(Conflict(other.without_attachment(), frame.without_attachment(), roll))
            if judge(evidence, announce_body, members).guilty:
                return frame.sender, evidence
    return None
