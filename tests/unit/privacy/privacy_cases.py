"""What the tests of this folder share: one hospital, one small job."""

from __future__ import annotations

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
