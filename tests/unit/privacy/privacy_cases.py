"""What the tests of this folder share: one hospital, one small job."""

from __future__ import annotations

from privacy.events import PoissonSubsampledGaussian
from privacy.leaves import Caps

ORIGIN = "feddrm/retina/hospital-a"
NOW = 1_800_000_123_456
PLAN = b"p" * 32
ROUNDS = 4
EVENT = PoissonSubsampledGaussian(1.5, 0.04, 5)
WHOLE = (PoissonSubsampledGaussian(1.5, 0.04, 5 * ROUNDS),)
CAPS = Caps(3.0, 3.0, 10.0, 10.0, 1e-4, 3)
