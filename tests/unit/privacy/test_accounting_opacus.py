"""The accountants of another house, on the same mechanism: Opacus' RDP and PRV."""

from __future__ import annotations

import itertools

import pytest

from privacy.accounting import ORDERS, epsilon
from privacy.events import PoissonSubsampledGaussian

GRID = [(0.8, 0.01, 1000), (1.1, 0.02, 3000), (2.0, 0.1, 500), (4.0, 0.3, 100)]
LARGE = list(itertools.product((0.6, 0.8, 1.1, 2.0, 5.0), (0.001, 0.01, 0.05, 0.2), (1, 30, 1000, 5000)))


def agree_on_rdp(sigma: float, rate: float, steps: int, delta: float) -> None:
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    theirs.history = [(sigma, rate, steps)]
    ours = epsilon([PoissonSubsampledGaussian(sigma, rate, steps)], delta).rdp
    assert ours == pytest.approx(theirs.get_epsilon(delta, alphas=list(ORDERS)), rel=1e-3, abs=1e-6)


def agree_on_prv(sigma: float, rate: float, steps: int, delta: float) -> None:
    """Their figure is an upper bound with an error of 0.01 in epsilon; ours is rounded up on a grid."""
    from opacus.accountants import PRVAccountant

    theirs = PRVAccountant()
    theirs.history = [(sigma, rate, steps)]
    value = float(theirs.get_epsilon(delta))
    ours = epsilon([PoissonSubsampledGaussian(sigma, rate, steps)], delta).pld
    assert abs(ours - value) <= 0.02 * value + 0.012


@pytest.mark.parametrize(("sigma", "rate", "steps"), GRID)
def test_renyi_agrees_with_opacus(sigma: float, rate: float, steps: int) -> None:
    agree_on_rdp(sigma, rate, steps, 1e-5)


@pytest.mark.parametrize(("sigma", "rate", "steps"), GRID)
def test_the_claim_agrees_with_opacus_prv(sigma: float, rate: float, steps: int) -> None:
    agree_on_prv(sigma, rate, steps, 1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("delta", [1e-7, 1e-5])
@pytest.mark.parametrize(("sigma", "rate", "steps"), LARGE)
def test_both_agree_over_a_large_grid(sigma: float, rate: float, steps: int, delta: float) -> None:
    agree_on_rdp(sigma, rate, steps, delta)
    if epsilon([PoissonSubsampledGaussian(sigma, rate, steps)], delta).rdp < 30:
        agree_on_prv(sigma, rate, steps, delta)
