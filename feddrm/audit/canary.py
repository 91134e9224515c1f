"""`feddrm-audit canary`: does a run with canaries refute the epsilon that it claims?

The file is the hospital's word and is not signed. What was to be run, and at what charge, is believed of a plan
that the operator signed; without one, a build that admits to little noise and claims a large epsilon passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from feddrm.cli import printable, table
from feddrm.contract.charge import charge
from feddrm.contract.errors import InputError, MalformedError, UsageError, VerificationError
from feddrm.contract.files import read_bounded
from feddrm.contract.kit import FederationRoot
from feddrm.contract.schedule import STAGE_TRAIN
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import SignedPlan, verify_plan
from privacy.accounting import CLAIM_DECIMALS
from privacy.canary import CONFIDENCE, SEED_BYTES, CanaryRun, CanaryVerdict, judge
from privacy.errors import MalformedError as MalformedRun

# Another machine's last digits may round a claim up to the next one.
_SAME_CLAIM: Final = 1.5 * 10.0**-CLAIM_DECIMALS


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A file, what it says and what that shows.

    Attributes:
        seeded: whether its seed is the auditor's, None if unknown.
        departures: in words, in what it departs from the signed plan; None if there is no plan to hold it against.
    """

    path: Path
    run: CanaryRun
    verdict: CanaryVerdict
    seeded: bool | None
    departures: tuple[str, ...] | None

    @property
    def passed(self) -> bool:
        """Nothing speaks against the claim."""
        return self.verdict.passed and self.seeded is not False and not self.departures


def parse_seed(text: str | None) -> bytes | None:
    """The seed that the auditor gave to the hospital.

    Raises:
        UsageError: it is not SEED_BYTES bytes in hexadecimal.
    """
    if text is None:
        return None
    try:
        seed = bytes.fromhex(text)
    except ValueError:
        seed = b""
    if len(seed) != SEED_BYTES:
        raise UsageError(f"--seed takes {SEED_BYTES} bytes in hexadecimal.")
    return seed


def read_terms(anchor: FederationRoot, path: Path) -> SignedPlan:
    """The plan whose training a hospital was to run on canaries.

    Raises:
        InputError: it is no signed plan, or trains nothing.
        VerificationError: the operator did not sign it, or it is another federation's.
    """
    try:
        signed = verify_plan(
            Signed.from_json(read_bounded(path)), federation=anchor.federation, operator=anchor.operator
        )
    except MalformedError as error:
        raise InputError(f"{path} is no signed plan: {error.message}") from error
    if not signed.plan.training.rounds:
        raise InputError(f"{path} trains no rounds, so there is nothing to run on canaries.")
    return signed


def departures(run: CanaryRun, signed: SignedPlan) -> Iterator[str]:
    """In what a run is not the plan's whole training at the plan's own charge, in words."""
    plan, cost = signed.plan, charge(signed.plan, STAGE_TRAIN)
    if (run.federation, run.job) != (plan.federation, plan.name):
        yield f"it is of job {run.job} of {run.federation}, the plan of {plan.name} of {plan.federation}"
    if run.silo not in plan.silos:
        yield f"the plan does not name {run.silo}"
    if (run.event,) != cost.events:
        yield f"its event is not that of the plan's training, {cost.events[0].to_json()}"
    if run.delta != cost.delta:
        yield f"its delta is {run.delta:g}, the plan's {cost.delta:g}"
    if not math.isclose(run.claimed, cost.epsilon, rel_tol=0.0, abs_tol=_SAME_CLAIM):
        yield f"it claims {run.claimed:.6f}, the plan's charge for training is {cost.epsilon:.6f}"


def judge_runs(paths: Sequence[Path], seed: bytes | None, terms: SignedPlan | None) -> list[JudgedRun]:
    """Judge the files that `feddrm-silo canary` wrote.

    Args:
        seed: the auditor's, None if the hospital drew it.
        terms: the plan that was to be run, None if event and claim are to be taken as the files have them.

    Raises:
        InputError: a file cannot be read.
        VerificationError: a file is no such run.
    """
    found = []
    for path in paths:
        try:
            run = CanaryRun.decode(read_bounded(path))
        except (MalformedRun, ValueError) as error:
            raise VerificationError(f"{path} is no run with canaries: {error}.") from error
        unlike = None if terms is None else tuple(departures(run, terms))
        found.append(JudgedRun(path, run, judge(run), None if seed is None else run.seed == seed, unlike))
    return found


def runs_text(judged: Sequence[JudgedRun]) -> str:
    """One table, then what it means."""
    headers = ("silo", "job", "right guesses", "epsilon above", "claimed", "recomputed", "result")
    rows = [
        (
            printable(one.run.silo),
            printable(one.run.job),
            f"{one.verdict.correct} of {one.verdict.guessed}",
            f"{one.verdict.lower:.3f}",
            f"{one.run.claimed:.3f}",
            f"{one.verdict.recomputed:.3f}",
            "PASS" if one.passed else "FAIL",
        )
        for one in judged
    ]
    lines = [table(headers, rows), ""]
    for one in judged:
        lines += [printable(f"{one.path}: {words}") for words in _findings(one)]
    if any(one.departures is None for one in judged):
        lines.append(
            "NOTE  event, delta and claim are the hospital's own word: a build that admits to little noise and claims a"
            " large epsilon passes. Give --plan and --root to hold them against the plan that the operator signed."
        )
    lines.append(
        f"'epsilon above' holds with {100 * CONFIDENCE:.1f} % confidence. A PASS proves no epsilon: it says that this"
        " attack, on that installation, found no more than was claimed. The file is not signed; made-up scores pass."
    )
    return "\n".join(lines)


def _findings(one: JudgedRun) -> list[str]:
    verdict, run = one.verdict, one.run
    found = [f"{run.event.to_json()}, delta {run.delta:g}"]
    if run.claimed < verdict.recomputed:
        found.append(f"claims {run.claimed:.6f}, but its event costs {verdict.recomputed:.6f}")
    if verdict.lower > run.claimed:
        found.append(
            f"the claim is refuted: under it, so many right guesses have a probability of at most {verdict.chance:.1g}"
        )
    found += one.departures or ()
    if one.seeded is False:
        found.append("its seed is not the one given: who chooses the seed can choose among runs")
    if one.seeded is None:
        found.append("its seed is the hospital's own; give one beforehand, and --seed here")
    return found


def runs_json(judged: Sequence[JudgedRun]) -> list[dict[str, Any]]:
    """The same as data."""
    return [
        {
            "file": str(one.path),
            "federation": one.run.federation,
            "silo": one.run.silo,
            "job": one.run.job,
            "event": one.run.event.to_json(),
            "delta": one.run.delta,
            "guessed": one.verdict.guessed,
            "correct": one.verdict.correct,
            "epsilon_above": one.verdict.lower,
            "confidence": CONFIDENCE,
            "claimed": one.run.claimed,
            "recomputed": one.verdict.recomputed,
            "chance": one.verdict.chance,
            "seed": one.run.seed.hex(),
            "seed_is_the_auditors": one.seeded,
            "terms_are_the_plans": None if one.departures is None else not one.departures,
            "departures": None if one.departures is None else list(one.departures),
            "passed": one.passed,
        }
        for one in judged
    ]
