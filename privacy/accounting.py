"""Epsilon of a list of events by dp-accounting: privacy loss distributions are the claim, Rényi DP stands beside it.

Pinned, so that two machines state the same figure: the library's minor version (pyproject.toml), the discretisation
and the orders. Importing this module does not load dp-accounting (0.8 s).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from privacy.events import (
    DistributedDiscreteGaussian,
    Event,
    LocalDiscreteGaussian,
    PoissonSubsampledGaussian,
    canonical,
)
from privacy.lattice import gaussian_mu, log_ratio, sampling_distance, tau

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    PrivacyLossDistribution = Any

DISCRETISATION: Final = 1e-4
ORDERS: Final = (
    tuple(1 + tenth / 10 for tenth in range(1, 100))
    + tuple(float(n) for n in range(11, 64))
    + (128.0, 256.0, 512.0, 1024.0)
)
PLD_LIMIT: Final = 50.0
CLAIM_DECIMALS: Final = 6
# Loss distributions are composed by FFT, whose rounding is not pessimistic: raising it to the power of the steps costs
# about steps * 2**-53 of probability (against the exact Gaussian: epsilon 3e-3 too low after 10**6 steps at delta 1e-8,
# 9e-4 after 2000 at 1e-11). So epsilon is taken at a delta that is smaller by four times that, and by 1e-12 for all
# else that is rounded; and no delta is accepted of which that would be a large part.
MINIMUM_DELTA: Final = 1e-8
STEP_SLACK: Final = 2.0**-51
FIXED_SLACK: Final = 1e-12
# What `claim` says where there is no bound worth writing down: more than any cap can be (leaves.Caps), and finite.
OVER_EVERY_CAP: Final = 1e9


@dataclass(frozen=True, slots=True)
class Epsilon:
    """Epsilon at one delta, by two accountants, both upper bounds.

    `pld` is the claim. Where Rényi DP gives more than `PLD_LIMIT` both hold its figure: the exact size of an
    epsilon above 50 helps nobody, and its loss distribution would fill the memory of whoever computes it. With discrete
    noise both are `OVER_EVERY_CAP` from some 35 on, where exp(epsilon) times the sampler's distance is no longer small
    against delta.
    """

    pld: float
    rdp: float


def epsilon(events: Iterable[Event], delta: float) -> Epsilon:
    """Smallest epsilon such that all `events` together are (epsilon, delta)-DP under add or remove one.

    Events are canonicalised first (steps summed per kind) and results are cached. What is not sampled is composed
    exactly, as one Gaussian, whatever it came from.

    Sources: Koskela et al. 2020 and Doroshenko et al. 2022 (PLD), Mironov 2017 and Mironov et al. 2019 (RDP), Kairouz,
    Liu and Steinke 2021 (RDP of sums of discrete Gaussians); docs/privacy.md for their PLD.

    Raises:
        ValueError: delta below `MINIMUM_DELTA`, or 1 and more.
    """
    if not MINIMUM_DELTA <= delta < 1:
        raise ValueError(f"delta must be at least {MINIMUM_DELTA:g} and below 1")
    return _epsilon(canonical(events), delta)


def epsilon_alone(events: Iterable[Event], delta: float) -> Epsilon:
    """`epsilon` against an adversary who sees this silo's vectors unmasked."""
    return epsilon((event.alone() for event in events), delta)


def claim(value: float) -> float:
    """The figure to write down for `value`: rounded up to six decimals.

    It always lies above by 1e-7 or more, so that another machine's last digits cannot exceed it. Infinity, NaN and
    whatever else reaches it become `OVER_EVERY_CAP`, which every hospital refuses.
    """
    if not value < OVER_EVERY_CAP:
        return OVER_EVERY_CAP
    return math.ceil((value + 1e-7) * 10**CLAIM_DECIMALS) / 10**CLAIM_DECIMALS if value else 0.0


def stated(value: float, decimals: int = 3) -> str:
    """An epsilon for people: its digits, or that there is none (`OVER_EVERY_CAP` stands for that)."""
    return f"{value:.{decimals}f}" if value < OVER_EVERY_CAP else "without a bound"


_UNBOUNDED: Final = Epsilon(OVER_EVERY_CAP, OVER_EVERY_CAP)


@lru_cache(maxsize=4096)
def _epsilon(events: tuple[Event, ...], delta: float) -> Epsilon:
    if not events:
        return Epsilon(0.0, 0.0)
    rdp = _rdp(events, delta)
    # Noise within distance t of noise that gives (e, d) gives (e, d + (1 + exp(e)) t). `ceiling` stands for e.
    ceiling = rdp + 1
    distance = math.fsum(sampling_distance(event) for event in events)
    drawn = distance * (1 + math.exp(min(ceiling, 500.0)))
    if drawn:
        if drawn > delta / 2:
            return _UNBOUNDED
        rdp = _rdp(events, delta - drawn)
    ratio = math.fsum(log_ratio(event) for event in events)
    resolved = delta - (sum(event.steps for event in events) * STEP_SLACK + FIXED_SLACK + ratio + drawn)
    if not (rdp <= PLD_LIMIT and resolved > 0):
        return Epsilon(rdp, rdp)
    whole = functools.reduce(lambda one, other: one.compose(other), _distributions(events))
    figures = Epsilon(float(whole.get_epsilon_for_delta(resolved)) + 2 * ratio, rdp)
    return figures if max(figures.pld, rdp) <= ceiling or not drawn else _UNBOUNDED


def _distributions(events: tuple[Event, ...]) -> Iterator[PrivacyLossDistribution]:
    mus = {event: gaussian_mu(event) for event in events}
    yield from (_sampled(event) for event, mu in mus.items() if mu is None)
    if any(mu is not None for mu in mus.values()):
        yield _gaussian(math.hypot(*(mu for mu in mus.values() if mu is not None)))


@lru_cache(maxsize=64)
def _gaussian(mu: float) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=DISCRETISATION)


@lru_cache(maxsize=64)
def _sampled(event: PoissonSubsampledGaussian) -> PrivacyLossDistribution:
    return _step(event.noise_multiplier, event.sampling_rate).self_compose(event.steps)


@lru_cache(maxsize=64)
def _step(noise_multiplier: float, sampling_rate: float) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_gaussian_mechanism(
        noise_multiplier, value_discretization_interval=DISCRETISATION, sampling_prob=sampling_rate
    )


def _rdp(events: tuple[Event, ...], delta: float) -> float:
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    curve = sum(event.steps * _curve(replace(event, steps=1)) for event in events)
    return float(compute_epsilon(ORDERS, curve, delta)[0])


@lru_cache(maxsize=64)
def _curve(step: Event) -> npt.NDArray[np.float64]:
    """Rényi divergence of one step at each of `ORDERS`; float64[len(ORDERS)]."""
    from dp_accounting import dp_event
    from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

    accountant: Any = RdpAccountant(list(ORDERS))
    match step:
        case PoissonSubsampledGaussian(noise_multiplier=sigma, sampling_rate=rate):
            if rate < 1:
                return _sampled_curve(sigma, rate)
            accountant.compose(dp_event.GaussianDpEvent(sigma))
        case LocalDiscreteGaussian():
            accountant.compose(dp_event.ZCDpEvent(rho=(step.sensitivity / step.scale) ** 2 / 2))
        case DistributedDiscreteGaussian():
            rho = (step.sensitivity / step.scale) ** 2 / (2 * step.shares)
            accountant.compose(dp_event.ZCDpEvent(rho=rho, xi=step.dimension * tau(step.scale**2, step.shares)))
    curve: npt.NDArray[np.float64] = accountant.rdp
    return curve


def _sampled_curve(sigma: float, rate: float) -> npt.NDArray[np.float64]:
    import numpy as np
    from dp_accounting import dp_event
    from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

    from privacy.renyi import sampled_gaussian

    whole = [order for order in ORDERS if order.is_integer()]
    accountant: Any = RdpAccountant(whole)
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma)))
    at_whole = dict(zip(whole, accountant.rdp, strict=True))
    return np.array(
        [at_whole[order] if order in at_whole else sampled_gaussian(sigma, rate, order) for order in ORDERS]
    )
