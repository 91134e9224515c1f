from __future__ import annotations

from feddrm.audit.mechanisms import mechanisms
from privacy.events import DistributedDiscreteGaussian, LocalDiscreteGaussian, PoissonSubsampledGaussian


def test_each_mechanism_is_one_line_with_its_noise_in_a_sum_and_alone() -> None:
    train = PoissonSubsampledGaussian(1.5, 0.04, 5)
    fit = DistributedDiscreteGaussian(1000, 100, 4, 330, 1)
    counts = LocalDiscreteGaussian(600, 100, 1, 1)
    found = mechanisms([train, fit, train, counts, fit, fit])
    rows = [(one.times, one.noise, one.noise_alone) for one in found]
    assert rows == [(3, 20.0, 10.0), (1, 6.0, 6.0), (10, 1.5, 1.5)]
    shares, local, gradients = found
    assert "of which 4 are counted" in shares.detail
    assert "330 numbers" in shares.detail
    assert "one number" in local.detail
    assert "probability 0.04" in gradients.detail
    assert len({one.name for one in found}) == 3


def test_a_job_that_reads_nothing_has_none() -> None:
    assert mechanisms([]) == ()
