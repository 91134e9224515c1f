"""What the demo's table says, computed from what the commands printed and from the held-out truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Truth:
    """One held-out record: the site it came from and its true label. Only the demo knows the site."""

    site: str
    label: str


@dataclass(frozen=True, slots=True)
class Accuracy:
    """All shares are of held-out records, in [0, 1]. `silos_asked` is how many a query was shown to, on average."""

    queries: int
    silos_asked: float
    routing_accuracy: float
    chance_routing: float
    largest_site_routing: float
    system_accuracy: float
    majority_accuracy: float
    random_silo_accuracy: float
    own_silo_accuracy: float

    def as_dict(self) -> dict[str, float]:
        """Plain numbers for JSON."""
        return asdict(self)


def measure(
    truth: Sequence[Truth],
    routes: Sequence[Sequence[str]],
    answers: Sequence[str],
    predictions: Mapping[str, Sequence[str]],
    majority: Mapping[str, str],
) -> Accuracy:
    """Compare with the truth.

    Args:
        truth: the n held-out records in file order.
        routes: the silos that each was routed to. Of two, which are in no order, each counts as half a route.
        answers: the label that they answered.
        predictions: for every silo its own model's label for each of the n records.
        majority: the commonest label among each site's *training* records.
    """
    count = len(truth)
    if not count or any(len(column) != count for column in (routes, answers, *predictions.values())):
        raise ValueError("every column must have one entry for each held-out record")
    sites = Counter(record.site for record in truth)

    def share(hits: float, of: int = count) -> float:
        return round(hits / of, 4)

    return Accuracy(
        queries=count,
        silos_asked=share(sum(len(named) for named in routes)),
        routing_accuracy=share(
            sum((record.site in named) / len(named) for record, named in zip(truth, routes, strict=True))
        ),
        chance_routing=round(1 / len(predictions), 4),
        largest_site_routing=share(max(sites.values())),
        system_accuracy=share(sum(a.label == b for a, b in zip(truth, answers, strict=True))),
        majority_accuracy=share(sum(record.label == majority[record.site] for record in truth)),
        random_silo_accuracy=share(
            sum(a.label == b for column in predictions.values() for a, b in zip(truth, column, strict=True)),
            count * len(predictions),
        ),
        own_silo_accuracy=share(sum(record.label == predictions[record.site][row] for row, record in enumerate(truth))),
    )
