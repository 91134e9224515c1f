"""Rényi divergence at fractional orders: the integral against arbitrary precision, and all orders against Opacus."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting import ORDERS, _curve
from privacy.events import PoissonSubsampledGaussian
from privacy.renyi import LARGEST_ORDER, ROUNDING, sampled_gaussian

CORNERS = [
    (sigma, rate, order)
    for sigma in (0.3, 1.1, 5.0, 1000.0)
    for rate in (1e-6, 0.01, 0.9)
    for order in (1.1, 2.5, 10.9)
]


def log_moment(sigma: float, rate: float, order: float) -> mpmath.mpf:
    """log A in 40 digits, by mpmath's own quadrature (tanh-sinh) between the places where the integrand bends."""
    with mpmath.workdps(40):
        s, q, a = mpmath.mpf(sigma), mpmath.mpf(rate), mpmath.mpf(order)

        def integrand(z: mpmath.mpf) -> mpmath.mpf:
            return mpmath.npdf(z, 0, s) * ((1 - q) + q * mpmath.exp((2 * z - 1) / (2 * s * s))) ** a

        bend = s * s * mpmath.log(1 / q - 1) + mpmath.mpf(1) / 2
        ends = [-30 * s, -10 * s, -4 * s, 0, 4 * s, a - 4 * s, a, a + 4 * s, a + 10 * s, a + 30 * s]
        if ends[0] < bend < ends[-1]:
            ends.append(bend)
        return mpmath.log(mpmath.quad(integrand, sorted(set(ends))))


@pytest.mark.parametrize(("sigma", "rate", "order"), CORNERS)
def test_the_integral_is_right_and_never_below(sigma: float, rate: float, order: float) -> None:
    exact = log_moment(sigma, rate, order)
    ours = sampled_gaussian(sigma, rate, order) * (order - 1)
    assert exact <= ours <= exact + 2 * ROUNDING


@given(
    sigma=st.floats(0.5, 20),
    rate=st.floats(1e-3, 0.5),
    order=st.sampled_from([o for o in ORDERS if not o.is_integer()]),
)
def test_every_order_agrees_with_opacus(sigma: float, rate: float, order: float) -> None:
    """Their signed series, on orders one by one: a figure for epsilon alone would show the best order only."""
    from opacus.accountants.analysis.rdp import compute_rdp

    theirs = compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=order)
    # Their series breaks off at terms of exp(-30), and is a difference of sums near one.
    assert sampled_gaussian(sigma, rate, order) == pytest.approx(theirs, rel=1e-5, abs=1e-11 / (order - 1))


@pytest.mark.parametrize(("sigma", "rate"), [(5.0, 0.2), (2.0, 0.2), (0.6, 0.2), (1.1, 0.02)])
def test_the_whole_curve_agrees_with_opacus(sigma: float, rate: float) -> None:
    """At sigma 5, q 0.2 and order 1.1 dp-accounting 0.6 states six times as much; elsewhere it left orders out."""
    from opacus.accountants.analysis.rdp import compute_rdp

    theirs = compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=list(ORDERS))
    ours = _curve(PoissonSubsampledGaussian(sigma, rate, 1))
    assert np.isfinite(ours).all()
    assert ours == pytest.approx(np.asarray(theirs), rel=1e-6)


def test_the_curve_rises_with_the_order() -> None:
    """Rényi divergence does; the two ways to compute it join without a step."""
    for sigma, rate in ((0.6, 0.05), (1.1, 0.3), (5.0, 0.001)):
        assert (np.diff(_curve(PoissonSubsampledGaussian(sigma, rate, 1))) > 0).all()


def test_nothing_is_never_stated() -> None:
    """dp-accounting takes a divergence below zero for an epsilon of zero."""
    assert sampled_gaussian(1000.0, 1e-6, 1.1) > 0


@pytest.mark.parametrize(
    ("sigma", "rate", "order"),
    [(0.29, 0.1, 2.5), (1.0, 1.0, 2.5), (1.0, 9e-7, 2.5), (1.0, 0.1, 1.0), (1.0, 0.1, LARGEST_ORDER + 0.1),
     (math.nan, 0.1, 2.5), (1.0, math.nan, 2.5), (1.0, 0.1, math.nan)],
)  # fmt: skip
def test_what_was_not_proven_is_refused(sigma: float, rate: float, order: float) -> None:
    with pytest.raises(ValueError, match="not proven"):
        sampled_gaussian(sigma, rate, order)
