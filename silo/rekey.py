"""New keys for a silo that has joined: made beside the old ones, taken into use with the operator's new kit.

The ledger goes with them: the old key and the new one both sign its SUCCESSOR leaf. Where there is no ledger that could
be handed over, because it is lost, `silo.recovery` begins another under the new keys.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feddrm.contract.errors import InputError, MalformedError, VerificationError, in_shell
from feddrm.contract.files import atomic_write, file_error, read_bounded, sync_directory
from feddrm.contract.fingerprint import member_fingerprint
from feddrm.contract.home import KIT_FILE, ROOT_FILE, Made, load_silo_home
from feddrm.contract.identity import MemberKeys, Role
from feddrm.contract.kit import Kit, check_current, check_own, load_federation_root, verify_kit
from feddrm.contract.pin import RosterPin
from feddrm.contract.request import make_request
from feddrm.contract.signed import Signed
from privacy.errors import LedgerCorrupt, LedgerError
from privacy.ledger import Ledger
from silo.begun import refuse_older
from silo.books import origin_of
from silo.home import Home, exclusive
from silo.state import State

KEYS, NEXT, FORMER = "keys", "keys.next", ".keys.former"
_MAXIMUM_KIT: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Taken:
    """What `take_keys` did. `problem`: why the ledger was given up as lost; empty if it was handed over, or none was
    begun."""

    kit: Kit
    problem: str


def make_next_keys(directory: Path) -> Made:
    """Make new keys beside those in use, and the request for them; asked again, the request of the same keys.

    Raises:
        InputError: not joined yet, or a file cannot be written.
    """
    member = load_silo_home(directory)
    waiting = directory / NEXT
    if not waiting.exists():
        building = directory / ".keys.next.new"
        try:
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir(mode=0o700)
            MemberKeys.generate().save(building)
            building.rename(waiting)
            sync_directory(directory)
        except OSError as error:
            raise file_error(error, waiting) from error
    keys = MemberKeys.load(waiting)
    path = directory / f"{member.name}.request"
    atomic_write(path, make_request(member.name, Role.SILO, keys).to_json().encode())
    return Made(path, member_fingerprint(Role.SILO.value, member.name, keys.identity_public))


def take_keys(directory: Path, kit_file: Path, fingerprint: str, now_ms: int, *, lost: bool = False) -> Taken:
    """Take the new keys into use: hand the ledger over, then replace keys and kit. After a crash, run it again.

    Args:
        kit_file: the operator's answer to the request of the new keys.
        fingerprint: the federation's, as it came by another way.
        lost: go on where the ledger cannot be handed over. The old keys are destroyed then, too, so that nobody can
            continue a copy of it beside the one that takes its place.

    Raises:
        InputError: there are no new keys, or a file cannot be read or written.
        VerificationError: the kit is of another federation or for other keys; or the ledger cannot be handed over and
            is not said to be lost: the old keys stay in use.
        AlreadyRunningError: an agent runs here.
    """
    home, startup = Home(directory), directory / "startup"
    with exclusive(home):
        keys = _next_keys(directory)
        try:
            signed = Signed.from_json(read_bounded(kit_file, limit=_MAXIMUM_KIT))
        except MalformedError as error:
            raise InputError(f"{kit_file} is not a kit, or is damaged.", remedy="Ask the operator again.") from error
        kit = verify_kit(signed, fingerprint)
        anchor = load_federation_root(startup / ROOT_FILE)
        if kit.anchor != anchor:
            raise InputError(f"{directory} is of federation {anchor.federation} under another operator key.")
        check_own(kit, Role.SILO, keys)
        check_current(kit, now_ms)
        RosterPin(startup, anchor).offer(kit.signed_roster, now_ms)
        problem = _hand_over(home, kit, keys, now_ms)
        if problem and not lost:
            raise VerificationError(
                f"The ledger cannot be handed over to the new keys: {problem}. The old keys stay in use.",
                remedy="If the ledger lies elsewhere, with all of its leaves, put it back and run this again. If it is"
                " lost for good: keys take --lost, then feddrm-silo ledger recover.",
            )
        atomic_write(startup / KIT_FILE, signed.to_json().encode())
        _swap(directory)
    return Taken(kit, problem)


def _next_keys(directory: Path) -> MemberKeys:
    if not (directory / NEXT).is_dir():
        raise InputError(
            f"{directory} has no new keys.", remedy=f"Make them: feddrm-silo keys new {in_shell(directory)}"
        )
    return MemberKeys.load(directory / NEXT)


def _hand_over(home: Home, kit: Kit, keys: MemberKeys, now_ms: int) -> str:
    if not home.ledger.exists():
        return f"there is no ledger {home.ledger}" if home.ledger_note.exists() else ""
    origin = origin_of(kit.subject.federation, kit.subject.name)
    try:
        Ledger.read(home.ledger, origin, keys.identity_public)
    except LedgerCorrupt:
        pass
    else:
        return ""
    try:
        old = MemberKeys.load(home.root / KEYS)
        with Ledger.open(home.ledger, origin, old.identity, now_ms=now_ms) as ledger:
            state = State.open(home.database)
            try:
                refuse_older(ledger, state)
            finally:
                state.close()
            ledger.hand_over(keys.identity, now_ms=now_ms)
    except LedgerCorrupt as error:
        return str(error)
    except LedgerError as error:
        raise InputError(f"The ledger cannot be used: {error}.") from error
    except VerificationError as error:
        return error.message
    return ""


def _swap(directory: Path) -> None:
    """The old keys are destroyed: with two keys in hand somebody could continue two logs."""
    try:
        if (directory / KEYS).exists():
            shutil.rmtree(directory / FORMER, ignore_errors=True)
            (directory / KEYS).rename(directory / FORMER)
        (directory / NEXT).rename(directory / KEYS)
        sync_directory(directory)
        shutil.rmtree(directory / FORMER)
    except OSError as error:
        raise file_error(error, directory) from error
