"""`feddrm-audit canary`: does a run with canaries refute the epsilon that it claims?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddrm.cli import printable, table
from feddrm.contract.errors import UsageError, VerificationError
from feddrm.contract.files import read_bounded
from privacy.canary import CONFIDENCE, SEED_BYTES, CanaryRun, CanaryVerdict, judge
from privacy.errors import MalformedError


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A file, what it says and what that shows. `seeded`: whether its seed is the auditor's, None if unknown."""

    path: Path
    run: CanaryRun
    verdict: CanaryVerdict
    seeded: bool | None

    @property
    def passed(self) -> bool:
        """Nothing speaks against the claim."""
        return self.verdict.passed and self.seeded is not False


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


def judge_runs(paths: Sequence[Path], seed: bytes | None) -> list[JudgedRun]:
    """Judge the files that `feddrm-silo canary` wrote.

    Raises:
        InputError: a file cannot be read.
        VerificationError: a file is no such run.
    """
    found = []
    for path in paths:
        try:
            run = CanaryRun.decode(read_bounded(path))
        except (MalformedError, ValueError) as error:
            raise VerificationError(f"{path} is no run with canaries: {error}.") from error
        found.append(JudgedRun(path, run, judge(run), None if seed is None else run.seed == seed))
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
        lines += [f"{one.path}: {words}" for words in _findings(one)]
    lines.append(
        f"'epsilon above' holds with {100 * CONFIDENCE:.1f} % confidence. A PASS proves no epsilon: it says that this"
        " attack, on that installation, found no more than was claimed."
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
            "passed": one.passed,
        }
        for one in judged
    ]
