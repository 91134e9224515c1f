"""Epsilon of a list of events by dp-accounting: privacy loss distributions are the claim, Rényi DP stands beside it.

Pinned, so that two machines state the same figure: the library's minor version (pyproject.toml), the discretisation
and the orders. Importing this module does not load dp-accounting (0.8 s).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from privacy.events import Event, canonical

if TYPE_CHECKING:
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
    epsilon above 50 helps nobody, and its loss distribution would fill the memory of whoever computes it.
    """

    pld: float
    rdp: float


def epsilon(events: Iterable[Event], delta: float) -> Epsilon:
    """Smallest epsilon such that all `events` together are (epsilon, delta)-DP under add or remove one.

    Events are canonicalised first (steps summed per noise multiplier and rate) and results are cached.

    Sources: Koskela et al. 2020 and Doroshenko et al. 2022 (PLD), Mironov 2017 and Mironov et al. 2019 (RDP).

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


@lru_cache(maxsize=4096)
def _epsilon(events: tuple[Event, ...], delta: float) -> Epsilon:
    if not events:
        return Epsilon(0.0, 0.0)
    rdp = _rdp(events, delta)
    resolved = delta - (sum(event.steps for event in events) * STEP_SLACK + FIXED_SLACK)
    if not (rdp <= PLD_LIMIT and resolved > 0):
        return Epsilon(rdp, rdp)
    whole = _distribution(events[0])
    for event in events[1:]:
        whole = whole.compose(_distribution(event))
    return Epsilon(float(whole.get_epsilon_for_delta(resolved)), rdp)


def _rdp(events: tuple[Event, ...], delta: float) -> float:
    from dp_accounting import dp_event
    from dp_accounting.rdp import rdp_privacy_accountant

    logging.getLogger("absl").addFilter(_not_an_excluded_order)
    accountant = rdp_privacy_accountant.RdpAccountant(list(ORDERS))
    for event in events:
        step = dp_event.PoissonSampledDpEvent(event.sampling_rate, dp_event.GaussianDpEvent(event.noise_multiplier))
        accountant.compose(step, event.steps)
    return float(accountant.get_epsilon(delta))


def _not_an_excluded_order(record: logging.LogRecord) -> bool:
    # An order whose series does not converge is left out: the bound only rises. Not a line an order for a user.
    return not record.getMessage().startswith("_compute_log_a_frac")


@lru_cache(maxsize=64)
def _distribution(event: Event) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution as pld

    if event.sampling_rate == 1:
        # The sum of Gaussian releases is one Gaussian release: exact, and much faster.
        return pld.from_gaussian_mechanism(
            event.noise_multiplier / math.sqrt(event.steps), value_discretization_interval=DISCRETISATION
        )
    return _step(event.noise_multiplier, event.sampling_rate).self_compose(event.steps)


@lru_cache(maxsize=64)
def _step(noise_multiplier: float, sampling_rate: float) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_gaussian_mechanism(
        noise_multiplier, value_discretization_interval=DISCRETISATION, sampling_prob=sampling_rate
    )
