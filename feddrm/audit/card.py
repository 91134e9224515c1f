"""Is a model card what was signed? The plan by the operator, the statement by silos, the card by the coordinator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from feddrm.contract.card import CARD_FILE, CARD_SIGNED_FILE, ROSTER_FILE, CardStatement, software, verify_card
from feddrm.contract.errors import FeddrmError, InputError, MalformedError
from feddrm.contract.files import read_bounded
from feddrm.contract.kit import FederationRoot
from feddrm.contract.release import PLAN_FILE, STATEMENT_FILE, Release, verify_release
from feddrm.contract.roster import verify_roster
from feddrm.contract.signed import Signed
from feddrm.method.card import render_card
from privacy.checks import Check

_LIMIT: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class JudgedCard:
    """All checks of the card in one release's directory."""

    folder: Path
    checks: tuple[Check, ...]

    @property
    def verified(self) -> bool:
        """Whether nothing failed."""
        return all(check.passed for check in self.checks)


def judge_card(anchor: FederationRoot, folder: Path, roster: Path | None = None) -> JudgedCard:
    """Verify the card of a release.

    Args:
        anchor: the federation's root; all is believed on its operator's word.
        folder: with the plan, the statement and the card, as the coordinator wrote them.
        roster: in the place of the directory's own.

    Raises:
        InputError: a file is missing or is not what it should be.
    """
    plan, statement, card = (_signed(folder / name) for name in (PLAN_FILE, STATEMENT_FILE, CARD_SIGNED_FILE))
    members = _signed(roster or folder / ROSTER_FILE)
    text = read_bounded(folder / CARD_FILE, limit=_LIMIT)
    return JudgedCard(folder, tuple(_checks(anchor, members, plan, statement, card, text)))


def _checks(
    anchor: FederationRoot, members: Signed, plan: Signed, statement: Signed, card: Signed, text: bytes
) -> Iterator[Check]:
    try:
        roster = verify_roster(members, federation=anchor.federation, operator=anchor.operator)
    except FeddrmError as error:
        yield Check("roster", False, None, error.message)
        return
    yield Check("roster", True, None, f"signed by the operator of {anchor.federation}, version {roster.version}")
    try:
        release = verify_release(statement, plan=plan, roster=roster)
    except FeddrmError as error:
        yield Check("release", False, None, error.message)
        return
    hospitals = f"{release.signatures} of {len(release.plan.plan.silos)} hospitals"
    yield Check("release", True, None, f"{release.id}: plan signed by the operator, statement by {hospitals}")
    try:
        said = verify_card(card, round_key=roster.round_key, release=release.hash, card=text)
    except FeddrmError as error:
        yield Check("card", False, None, error.message)
        return
    yield Check("card", True, None, "not one byte differs from what the coordinator signed for this release")
    yield _text(release, said, text)


def _text(release: Release, said: CardStatement, text: bytes) -> Check:
    if render_card(release, said.noise.found() if said.noise else None).encode() == text:
        source = "; the noise found is the coordinator's own word" if said.noise else ""
        return Check("text", True, None, f"every line follows from the signed plan and statement{source}")
    if said.software != software():
        message = f"written by version {said.software}, this is {software()}, which words a card otherwise"
        return Check("text", True, None, message, note=True)
    return Check("text", False, None, "the coordinator signed a text that does not follow from plan and statement")


def _signed(path: Path) -> Signed:
    try:
        return Signed.from_json(read_bounded(path, limit=_LIMIT))
    except MalformedError as error:
        raise InputError(f"{path} is not a signed document, or is damaged.") from error


def cards_text(judged: Sequence[JudgedCard]) -> str:
    """One line a check, then OK or not."""
    lines = []
    for one in judged:
        lines.append(f"{one.folder / CARD_FILE}")
        for check in one.checks:
            word = "FAIL" if not check.passed else "NOTE" if check.note else "PASS"
            lines.append(f"  {word}  {check.name}: {check.message}")
        lines.append(
            "  OK: this is the card of that release." if one.verified else "  NOT OK: do not rely on this card."
        )
    return "\n".join(lines)


def cards_json(judged: Sequence[JudgedCard]) -> list[dict[str, Any]]:
    """The same as data."""
    return [
        {
            "directory": str(one.folder),
            "verified": one.verified,
            "checks": [
                {"name": check.name, "passed": check.passed, "note": check.note, "message": check.message}
                for check in one.checks
            ],
        }
        for one in judged
    ]
