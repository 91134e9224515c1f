"""How good a federation is, by held-out records whose silo is known.

A query from outside is routed to one silo, which answers ("system"), or to two that are nearly tied, whose answers are
averaged. The rivals ask everybody: the average of what all silos answer ("ensemble"), the majority of their answers
("vote"), or one model whose weights are the average of all ("averaged head").
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]

# Places of what is printed: a held-out set has some ten thousand records at most.
_PLACES: Final = 4


@dataclass(frozen=True, slots=True)
class Answers:
    """What all models say of m held-out records.

    Args:
        logits: float32[m, K, classes], each silo's own model.
        averaged: float32[m, classes], the model whose weights are the average of the silos'.
        targets: int64[m].
        home: int64[m], the silo that each record came from.
        told: float32[m, K, classes], the probabilities that a silo answers a query from outside with; None where that
            is its own model's softmax.
        at_home: float32[m, classes], likewise what its own silo says of each record, as of its own patient.
        shared: float32[m, classes], logits of the target head that stage 2 fits for all silos, if it does.
    """

    logits: Floats
    averaged: Floats
    targets: Numbers
    home: Numbers
    told: Floats | None = None
    at_home: Floats | None = None
    shared: Floats | None = None


@dataclass(frozen=True, slots=True)
class Quality:
    """Shares of all held-out records, or of one silo's.

    Args:
        system: a query is answered right. Without a router: by the majority of all silos.
        one_silo: the silo that the router names is right, without a second opinion; None without a router.
        routing: it goes to the silo that it came from; None without a router.
        own_silo: its own silo is right, to which it is an own patient.
        random_silo: a silo drawn at random is right.
        ensemble, vote: everybody is asked, as a query from outside asks, and they are right.
        averaged_head: one model of averaged weights is right.
        shared_head: the target head of all silos alone is right; None where there is none.
        worst_silo: the system's share among the records of the silo that is served worst.
        silo_variance: the variance over silos of the system's share.
        asked: silos that a query is shown to, on average.
        silo_system: the system's share for each silo's records.
        silo_own: the own silo's share for each silo's records.
    """

    system: float
    one_silo: float | None
    routing: float | None
    own_silo: float
    random_silo: float
    ensemble: float
    vote: float
    averaged_head: float
    shared_head: float | None
    worst_silo: float
    silo_variance: float
    asked: float
    silo_system: tuple[float, ...]
    silo_own: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON, rounded."""
        return {name: _rounded(value) for name, value in asdict(self).items()}


def measure(answers: Answers, routes: Numbers | None, *, alike: bool = False) -> Quality:
    """Judge the models.

    Args:
        answers: of all models.
        routes: int64[m, 1 or 2], the silos that each record is shown to, the second -1 where there is none; None
            without a router.
        alike: all silos have the same model, so that one of them is asked.

    Raises:
        ValueError: there are no records, or the shapes differ.
    """
    logits, targets, home = answers.logits, answers.targets, answers.home
    count, silos, classes = logits.shape
    if not count or not len(targets) == len(home) == len(answers.averaged) == count:
        raise ValueError("every record has answers, a target and a home")
    rows = np.arange(count)
    probabilities = softmax(logits) if answers.told is None else answers.told
    # Softmax in single precision may make equals of what differs.
    said = (logits if answers.told is None else answers.told).argmax(axis=2)
    right = said == targets[:, None]
    at_home = right[rows, home] if answers.at_home is None else answers.at_home.argmax(axis=1) == targets
    votes = np.stack([(said == label).sum(axis=1) for label in range(classes)], axis=1)
    vote = votes.argmax(axis=1) == targets
    if routes is None:
        served, one_silo, routing, asked = vote, None, None, 1.0 if alike else float(silos)
    else:
        served = _opinion(probabilities, routes) == targets
        one_silo = float(right[rows, routes[:, 0]].mean())
        routing = float((routes[:, 0] == home).mean())
        asked = float((routes >= 0).sum(axis=1).mean())
    of_silo = [home == silo for silo in range(silos)]
    silo_system = tuple(float(served[members].mean()) for members in of_silo if members.any())
    silo_own = tuple(float(at_home[members].mean()) for members in of_silo if members.any())
    return Quality(
        system=float(served.mean()),
        one_silo=one_silo,
        routing=routing,
        own_silo=float(at_home.mean()),
        random_silo=float(right.mean()),
        ensemble=float((probabilities.mean(axis=1).argmax(axis=1) == targets).mean()),
        vote=float(vote.mean()),
        averaged_head=float((answers.averaged.argmax(axis=1) == targets).mean()),
        shared_head=None if answers.shared is None else float((answers.shared.argmax(axis=1) == targets).mean()),
        worst_silo=min(silo_system),
        silo_variance=float(np.var(silo_system)),
        asked=asked,
        silo_system=silo_system,
        silo_own=silo_own,
    )


def softmax(logits: Floats) -> Floats:
    """Probabilities along the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def _opinion(probabilities: Floats, routes: Numbers) -> Numbers:
    """int64[m]: the class of the largest probability, averaged over those who are asked."""
    rows = np.arange(len(routes))[:, None]
    asked = routes >= 0
    weights = (asked / asked.sum(axis=1, keepdims=True)).astype(np.float32)
    mean = (probabilities[rows, np.where(asked, routes, 0)] * weights[:, :, None]).sum(axis=1)
    chosen: Numbers = mean.argmax(axis=1)
    return chosen


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_rounded(each) for each in value]
    return round(value, _PLACES) if isinstance(value, float) else value
