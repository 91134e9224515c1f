"""Evidence against a silo, as the coordinator and silos keep it, judged from the federation's root.

The roster gives the silos' keys and must be the one that the announcement names. The announcement itself needs no
signature here: every frame that convicts is bound to its hash, and an honest silo answers none that the round key did
not sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from feddrm.cli import printable
from feddrm.contract.case import MAXIMUM_CASE, Case
from feddrm.contract.errors import FeddrmError, InputError, MalformedError, VerificationError
from feddrm.contract.files import read_bounded
from feddrm.contract.kit import FederationRoot
from feddrm.contract.roster import roster_hash, verify_roster
from feddrm.contract.signed import Signed
from secagg.errors import UnsoundError, WireError
from secagg.evidence import Verdict, judge
from secagg.session import Announcement
from secagg.wire import Frame


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, and what it is about."""

    path: Path
    announcement: Announcement
    accuser: str
    verdict: Verdict


def judge_case(anchor: FederationRoot, path: Path, roster: Path | None) -> Judged:
    """Judge one file of evidence.

    Args:
        anchor: the federation's root.
        path: a file as `Case.to_json` writes it.
        roster: a signed roster, where the file brings none.

    Raises:
        InputError: no evidence in it, or there is no roster to judge by.
        VerificationError: the roster is not the operator's, or not the one that the announcement names.
    """
    try:
        case = Case.from_json(read_bounded(path, limit=MAXIMUM_CASE))
        announcement = Announcement.decode(case.announcement)
    except (MalformedError, WireError, UnsoundError) as error:
        raise InputError(
            f"{path} is no evidence: {error}",
            remedy="The coordinator keeps evidence in blobs/cases of its server directory.",
        ) from error
    text = case.roster or (read_bounded(roster).decode("utf-8", "replace") if roster is not None else "")
    if not text:
        raise InputError(
            f"{path} brings no roster.", remedy="Give it with --roster (startup/roster.signed of a member)."
        )
    try:
        signed = Signed.from_json(text)
    except FeddrmError as error:
        raise InputError(f"The roster cannot be read: {error.message}") from error
    known = verify_roster(signed, federation=anchor.federation, operator=anchor.operator)
    if announcement.federation != anchor.federation or announcement.roster != roster_hash(signed.body):
        raise VerificationError(
            f"{path} is about an announcement under another roster than the one given.",
            remedy="Give the roster of that time with --roster.",
        )
    members = {member.name: member.identity for member in known.silos}
    accuser = case.evidence.sender if isinstance(case.evidence, Frame) else ""
    return Judged(path, announcement, accuser, judge(case.evidence, case.announcement, members))


def case_text(judged: Judged) -> str:
    """The verdict in words."""
    about = judged.announcement
    lines = [
        f"{judged.path}: round {about.round} of stage {about.stage}, attempt {about.attempt}, plan "
        f"{about.plan.hex()[:16]}…, cohort {', '.join(about.cohort)}"
    ]
    if judged.accuser:
        lines.append(f"  brought by {judged.accuser}, in an abort that it signed")
    if judged.verdict.guilty:
        lines.append(f"  GUILTY: {judged.verdict.guilty} {judged.verdict.reason}")
    else:
        lines.append(f"  Nothing is proven against anybody: {judged.verdict.reason}")
    return printable("\n".join(lines))


def case_json(judged: Judged) -> dict[str, object]:
    """The same as one object."""
    about = judged.announcement
    return {
        "file": str(judged.path),
        "plan": about.plan.hex(),
        "stage": about.stage,
        "round": about.round,
        "attempt": about.attempt,
        "cohort": list(about.cohort),
        "accuser": judged.accuser or None,
        "guilty": judged.verdict.guilty or None,
        "reason": judged.verdict.reason,
    }
