"""Noise for an epsilon: within it, not far below it, and less of it for more epsilon."""

from __future__ import annotations

import pytest

from feddrm.compare.budget import Terms, noise_for
from feddrm.contract.errors import InputError
from privacy.accounting import epsilon
from privacy.events import PoissonSubsampledGaussian


@pytest.mark.parametrize("wanted", [0.5, 3.0])
def test_the_whole_epsilon_is_spent_and_no_more(wanted: float) -> None:
    noise = noise_for(Terms(wanted, 1e-5, 0.2, 6))
    assert 0.985 * wanted < noise.epsilon <= wanted
    spent = epsilon([PoissonSubsampledGaussian(noise.training, 0.2, 6)], 1e-5).pld
    assert spent == noise.epsilon


def test_a_fit_has_its_share_and_training_the_rest() -> None:
    terms = Terms(1.0, 1e-5, 0.2, 6, 3, 30, 4, 0.5)
    noise = noise_for(terms)
    assert noise.fit is not None
    assert 0.985 < noise.epsilon <= 1.0
    assert 0.49 < epsilon([noise.fit] * 3, 1e-5).pld <= 0.5
    # Less epsilon is left for training than without a fit.
    assert noise.training > noise_for(Terms(1.0, 1e-5, 0.2, 6)).training


def test_an_epsilon_out_of_reach_is_refused() -> None:
    with pytest.raises(InputError, match="No noise"):
        noise_for(Terms(1e-4, 1e-5, 1.0, 10_000))


def test_the_least_noise_may_leave_epsilon_over() -> None:
    assert noise_for(Terms(500.0, 1e-5, 0.01, 1)).training == 0.3
