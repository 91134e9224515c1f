"""Rényi divergence of the Poisson-subsampled Gaussian at fractional orders, by quadrature.

At whole orders it is a finite sum of positive terms, which dp-accounting adds up. At others that library (0.6) sums the
*absolute values* of an alternating series, and leaves an order out where a thousand terms are not enough: a bound, but
up to six times the divergence at order 1.1 (sigma 5, q 0.2), where large epsilons have their best order. Opacus sums
the signed series; it and the integral here agree.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

LARGEST_ORDER: Final = 16.0
_POINTS_PER_SIGMA: Final = 16
_REACH: Final = 40
# Twice what float64 was seen to lose of log A, so that rounding cannot make a figure too small.
ROUNDING: Final = 1e-13


def sampled_gaussian(noise_multiplier: float, sampling_rate: float, order: float) -> float:
    """Rényi divergence of one step, in nats, rounded up.

    log(A) / (a - 1) with A = E[((1 - q) + q exp((2 z - 1) / (2 s**2)))**a], z from N(0, s**2), which is the larger of
    both directions (Mironov, Talwar and Zhang 2019, section 3.2 and theorem 5).

    The integrand is analytic up to |Im z| = pi s**2, where the bracket vanishes, and there at most exp(|Im z|**2 /
    (2 s**2)) times that of the real line, so that the trapezoidal rule of step h has a relative error of at most
    2 exp(d**2 / (2 s**2) - 2 pi d / h), for every d below pi s**2 (Trefethen and Weideman 2014, theorem 5.1): with
    h = s / 16 and d = 3 s min(s, 3) below 1e-36 for s >= 0.3. As 1 and the bracket's power are at most their maximum,
    what lies beyond 40 s of [0, a] is below exp(-800) max(1, q**-a) of A: below 1e-250 for a <= 16 and q >= 1e-6.

    Args:
        noise_multiplier: s, at least 0.3.
        sampling_rate: q, at least 1e-6 and below 1.
        order: a, above 1 and at most `LARGEST_ORDER`.

    Raises:
        ValueError: a parameter out of its range.
    """
    if not (noise_multiplier >= 0.3 and 1e-6 <= sampling_rate < 1 and 1 < order <= LARGEST_ORDER):
        raise ValueError("a noise multiplier, sampling rate or order for which the quadrature was not proven")
    step = noise_multiplier / _POINTS_PER_SIGMA
    margin = _REACH * _POINTS_PER_SIGMA
    z = step * np.arange(-margin, math.ceil(order / step) + margin + 1, dtype=np.float64)
    variance = noise_multiplier**2
    exponents = -(z**2) / (2 * variance) + order * np.logaddexp(
        math.log1p(-sampling_rate), math.log(sampling_rate) + (2 * z - 1) / (2 * variance)
    )
    largest = float(exponents.max())
    total = math.fsum(np.exp(exponents - largest)) * step / (noise_multiplier * math.sqrt(2 * math.pi))
    return (max(math.log(total) + largest, 0.0) + ROUNDING) / (order - 1)
