"""What the tests of this folder share: one hospital, one small job, one exact answer."""

from __future__ import annotations

import math

from scipy.special import log_ndtr

from privacy.events import PoissonSubsampledGaussian
from privacy.gate import Gate
from privacy.leaves import Caps, Dataset

ORIGIN = "feddrm/retina/hospital-a"
NOW = 1_800_000_123_456
PLAN = b"p" * 32
ROUNDS = 4
EVENT = PoissonSubsampledGaussian(1.5, 0.04, 5)
WHOLE = (PoissonSubsampledGaussian(1.5, 0.04, 5 * ROUNDS),)
CAPS = Caps(3.0, 3.0, 1e-5, 10.0, 10.0, 1e-4, 3)
DATA = Dataset(PLAN, bytes(32), bytes(32), "id", 1000)


def note_data(gate: Gate, plan: bytes = PLAN, commitment: bytes = bytes(32)) -> int:
    """A DATASET leaf like `DATA`, through the gate."""
    return gate.record_dataset(plan, commitment, bytes(32), patient="id", public_size=1000, now_ms=NOW)


def exact_gaussian(mu: float, delta: float) -> float:
    """Epsilon of one Gaussian release of sensitivity mu sigma at `delta`: Balle and Wang 2018, theorem 8, solved."""
    low, high = 0.0, 200.0
    for _ in range(200):
        middle = (low + high) / 2
        first, second = log_ndtr(mu / 2 - middle / mu), middle + log_ndtr(-mu / 2 - middle / mu)
        low, high = (middle, high) if math.exp(first) - math.exp(second) > delta else (low, middle)
    return low
