"""One-run auditing: from one training run with inserted canaries to a lower bound of epsilon (numpy only).

Of `CANARIES` canaries each is inserted or not by a fair coin. A mechanism that is (epsilon, delta)-DP under adding and
removing records, run once on all that were, lets nobody guess the coins well: however guesses are made from what it
released, the number of right ones among r is exceeded with at most the probability of `p_value` (Steinke, Nasr and
Jagielski 2023, arXiv 2305.08846, theorem 5.2 and corollary 5.4). A tiny probability refutes the claim.

Coins come from a seed and guesses from scores by a rule fixed here, so that nobody chooses them afterwards.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from privacy import labels
from privacy.accounting import MINIMUM_DELTA, claim, epsilon
from privacy.canonical import canonical_json, parse_canonical
from privacy.errors import MalformedError
from privacy.events import Event, PoissonSubsampledGaussian, event_from_json

CANARIES: Final = 1000
GUESSED_IN: Final = 250
GUESSED_OUT: Final = 250
CONFIDENCE: Final = 0.999
SEED_BYTES: Final = 32

_FORMAT: Final = "feddrm canary 1"
_LARGEST_EPSILON: Final = 50.0
_FIELDS: Final = {"format", "federation", "job", "silo", "seed", "event", "delta", "claimed", "scores"}


def inserted(seed: bytes) -> npt.NDArray[np.bool_]:
    """Which canaries are inserted: bool[CANARIES], fair coins from the seed.

    Raises:
        ValueError: the seed has not SEED_BYTES bytes.
    """
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed has {SEED_BYTES} bytes")
    stream = hashlib.shake_256(labels.CANARY_COINS + seed).digest(CANARIES // 8)
    return np.unpackbits(np.frombuffer(stream, dtype=np.uint8)).astype(np.bool_)


def guesses(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    """int8[CANARIES]: 1 for the GUESSED_IN highest scores, -1 for the GUESSED_OUT lowest, 0 for those between.

    Equal scores are taken in their order, which the coins do not know.

    Raises:
        ValueError: not CANARIES finite scores.
    """
    if scores.shape != (CANARIES,) or not np.isfinite(scores).all():
        raise ValueError(f"there must be {CANARIES} finite scores")
    order = np.argsort(scores, kind="stable")
    made = np.zeros(CANARIES, dtype=np.int8)
    made[order[:GUESSED_OUT]] = -1
    made[order[-GUESSED_IN:]] = 1
    return made


def p_value(epsilon: float, delta: float, *, canaries: int, guessed: int, correct: int) -> float:
    """The probability of at least `correct` right guesses under (epsilon, delta)-DP, bounded from above.

    Raises:
        ValueError: not 0 <= correct <= guessed <= canaries, or epsilon or delta out of range.
    """
    if not 0 <= correct <= guessed <= canaries or not 0 <= epsilon <= _LARGEST_EPSILON or not 0 <= delta <= 1:
        raise ValueError("no such number of guesses, epsilon or delta")
    # A right guess of one bit under epsilon-DP, as randomised response has it.
    right = 1.0 / (1.0 + math.exp(-epsilon))
    masses = [_binomial(guessed, count, right, epsilon) for count in range(guessed + 1)]
    beta = math.fsum(masses[correct:])
    # Delta may turn outcomes: i of them at once at a price of i.
    reach, alpha = 0.0, 0.0
    for turned in range(1, correct + 1):
        reach += masses[correct - turned]
        alpha = max(alpha, reach / turned)
    return min(1.0, beta + 2.0 * canaries * delta * alpha)


def lower_bound(delta: float, *, canaries: int, guessed: int, correct: int, confidence: float = CONFIDENCE) -> float:
    """The largest epsilon (to 1e-6, from below) that so many right guesses refute; 0 if they refute none."""
    low, high = 0.0, _LARGEST_EPSILON

    def refuted(value: float) -> bool:
        return p_value(value, delta, canaries=canaries, guessed=guessed, correct=correct) < 1.0 - confidence

    if not refuted(low):
        return 0.0
    # Whoever is not (epsilon, delta)-DP is not for a smaller epsilon either; `low` has been refuted itself.
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _binomial(trials: int, successes: int, chance: float, odds: float) -> float:
    """P[successes of trials], where log(chance / (1 - chance)) = odds."""
    ways = math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    return math.exp(ways + trials * math.log(chance) - (trials - successes) * odds)


@dataclass(frozen=True, slots=True)
class CanaryRun:
    """What a run with canaries leaves: facts for `judge`, and nothing about patients.

    Attributes:
        federation, job, silo: names, for people.
        seed: SEED_BYTES bytes from which the coins follow.
        event: what the run did, as it is accounted.
        delta: at which epsilon is claimed.
        claimed: epsilon.
        scores: float64[CANARIES]: high for a canary that seems to be in.
    """

    federation: str
    job: str
    silo: str
    seed: bytes
    event: Event
    delta: float
    claimed: float
    scores: npt.NDArray[np.float64] = field(repr=False)

    def encode(self) -> bytes:
        """Canonical JSON."""
        return canonical_json(
            {
                "format": _FORMAT,
                "federation": self.federation,
                "job": self.job,
                "silo": self.silo,
                "seed": self.seed.hex(),
                "event": self.event.to_json(),
                "delta": self.delta,
                "claimed": self.claimed,
                "scores": [float(score) for score in self.scores],
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            MalformedError: it is anything else.
        """
        raw = parse_canonical(data)
        if not isinstance(raw, dict) or set(raw) != _FIELDS or raw["format"] != _FORMAT:
            raise MalformedError(f"not a run of the format {_FORMAT!r}")
        if not all(isinstance(raw[name], str) for name in ("federation", "job", "silo", "seed")):
            raise MalformedError("names and seed are text")
        event = event_from_json(raw["event"])
        if not isinstance(event, PoissonSubsampledGaussian):
            raise MalformedError("only stage 1 is audited with canaries")
        delta, claimed = _real(raw["delta"]), _real(raw["claimed"])
        if not MINIMUM_DELTA <= delta < 1 or not claimed >= 0:
            raise MalformedError("delta or the claim is out of range")
        scores = raw["scores"]
        if not isinstance(scores, list) or len(scores) != CANARIES:
            raise MalformedError(f"there must be {CANARIES} scores")
        try:
            seed = bytes.fromhex(raw["seed"])
        except ValueError as error:
            raise MalformedError("the seed is not in hexadecimal") from error
        if len(seed) != SEED_BYTES or seed.hex() != raw["seed"]:
            raise MalformedError(f"a seed has {SEED_BYTES} bytes")
        values = np.array([_real(score) for score in scores])
        return cls(raw["federation"], raw["job"], raw["silo"], seed, event, delta, claimed, values)


@dataclass(frozen=True, slots=True)
class CanaryVerdict:
    """What a run says about the claim.

    Attributes:
        recomputed: epsilon of the event at the run's delta.
        guessed, correct: numbers of guesses, and of right ones.
        lower: what epsilon exceeds with CONFIDENCE.
        chance: of so many right guesses if the claim were true, at most.
        passed: the claim covers the event, and is not refuted.
    """

    recomputed: float
    guessed: int
    correct: int
    lower: float
    chance: float
    passed: bool


def judge(run: CanaryRun) -> CanaryVerdict:
    """Make the guesses, count the right ones, and hold them against the claim."""
    made = guesses(run.scores)
    correct = int((np.where(inserted(run.seed), 1, -1) * made == 1).sum())
    guessed = GUESSED_IN + GUESSED_OUT
    recomputed = claim(epsilon([run.event], run.delta).pld)
    lower = lower_bound(run.delta, canaries=CANARIES, guessed=guessed, correct=correct)
    chance = p_value(min(run.claimed, _LARGEST_EPSILON), run.delta, canaries=CANARIES, guessed=guessed, correct=correct)
    passed = run.claimed >= recomputed and lower <= run.claimed
    return CanaryVerdict(recomputed, guessed, correct, lower, chance, passed)


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MalformedError("a number is missing")
    return float(value)
