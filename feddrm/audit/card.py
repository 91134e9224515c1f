"""Is a model card what was signed? The plan by the operator, the statement by silos, the card by the coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from feddrm.contract.card import CARD_FILE, CARD_SIGNED_FILE, ROSTER_FILE, CardStatement, software, verify_card
from feddrm.contract.errors import FeddrmError, InputError, MalformedError
from feddrm.contract.files import read_bounded
from feddrm.contract.kit import FederationRoot
from feddrm.contract.release import PLAN_FILE, STATEMENT_FILE, verify_release
from feddrm.contract.roster import verify_roster
from feddrm.contract.signed import Signed
from feddrm.method.card import render_card
from privacy.checks import Check

_LIMIT: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class JudgedCard:
    """All checks of the card in one release's directory.

    Attributes:
        written: the card that this version makes from the signed plan and statement and the noise that the coordinator
            signed for; None where one of these signatures does not hold.
    """

    folder: Path
    checks: tuple[Check, ...]
    written: str | None

    @property
    def verified(self) -> bool:
        """Whether nothing failed, and nothing was left unchecked."""
        return all(check.passed for check in self.checks)

    @property
    def unchecked(self) -> bool:
        """Whether nothing failed, but the text could not be checked: this is not verified either."""
        return not self.verified and all(check.passed or check.note for check in self.checks)


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
    checks: list[Check] = []
    written = _judge(anchor, members, plan, statement, card, text, checks)
    return JudgedCard(folder, tuple(checks), written)


def _judge(
    anchor: FederationRoot,
    members: Signed,
    plan: Signed,
    statement: Signed,
    card: Signed,
    text: bytes,
    checks: list[Check],
) -> str | None:
    """Check one after the other, as long as they hold; returns the card that this version writes."""
    step = "roster"
    try:
        roster = verify_roster(members, federation=anchor.federation, operator=anchor.operator)
        checks.append(
            Check(step, True, None, f"signed by the operator of {anchor.federation}, version {roster.version}")
        )
        step = "release"
        release = verify_release(statement, plan=plan, roster=roster)
        hospitals = f"{release.signatures} of {len(release.plan.plan.silos)} hospitals"
        signed = f"{release.id}: plan signed by the operator, statement by {hospitals}"
        checks.append(Check(step, True, None, signed))
        step = "card"
        said = verify_card(card, round_key=roster.round_key, release=release.hash, card=text)
        same = "not one byte differs from what the coordinator signed for this release"
        checks.append(Check(step, True, None, same))
    except FeddrmError as error:
        checks.append(Check(step, False, None, error.message))
        return None
    written = render_card(release, said.noise.found() if said.noise else None)
    checks.append(_text(said, written.encode() == text))
    return written


def _text(said: CardStatement, same: bool) -> Check:
    if same:
        source = "; the noise found is the coordinator's own word" if said.noise else ""
        return Check("text", True, None, f"every line follows from the signed plan and statement{source}")
    if said.software != software():
        # Only the coordinator says which version wrote it: that must not buy a text of its own choice an OK.
        message = (
            f"differs from what follows from plan and statement. The coordinator says that version {said.software} "
            f"worded it: check it with that version, or read what this one ({software()}) writes (--write FILE)"
        )
        return Check("text", False, None, message, note=True)
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
            word = "PASS" if check.passed else "UNCHECKED" if check.note else "FAIL"
            lines.append(f"  {word}  {check.name}: {check.message}")
        if one.verified:
            lines.append("  OK: this is the card of that release.")
        elif one.unchecked:
            lines.append("  NOT OK: not one line of this card's text is checked; do not rely on it.")
        else:
            lines.append("  NOT OK: do not rely on this card.")
    return "\n".join(lines)


def cards_json(judged: Sequence[JudgedCard]) -> list[dict[str, Any]]:
    """The same as data."""
    return [
        {
            "directory": str(one.folder),
            "verified": one.verified,
            "unchecked": one.unchecked,
            "checks": [
                {"name": check.name, "passed": check.passed, "note": check.note, "message": check.message}
                for check in one.checks
            ],
        }
        for one in judged
    ]
