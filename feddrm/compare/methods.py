"""The methods that are compared, as rows of one table.

What a row says is what a plan says: which tensors are personal, which stages run. `system` is how a query from outside
is answered: by the silo that the router names, or, where a method has no router, by the majority of all silos, as
the paper's code does for its baselines. Where stage 2 fits a target head for all silos, every answer has a part of it;
`fedavg-shared` is that head alone on the same trunk, and so what routing and heads of silos must be worth.

`feddrm` is what a plan should say (docs/plan.md): stage 1 trains one network by the target alone, stage 2 fits router
and target head on it, and only then has a silo a head of its own. Without noise, which no plan allows, heads are
personal from the first round, as in the paper: what speaks against it is noise that stays in each of them. Rows that
are named after a part lack it, or have it in stage 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Method:
    """One row.

    Args:
        name: of the method.
        personal: shell patterns of the tensors that stay at their silo.
        routes: whether queries are routed.
        beside: whether stage 1 trains the routing head beside the target head, with the settings' target_weight.
        fits: whether stage 2 runs, which fits a routing head anew on the frozen trunk.
        shares: whether the same sums fit one target head for all silos, which their answers have a part of.
        heads: whether stage 3 tunes a head for every silo, from that of all silos where there is one.
        head_first: FedRep's alternation: the personal tensors move first, then the shared ones.
        tunes: FedAvgFT: the last rounds are not averaged.
        proximal: FedProx: local steps are pulled to the round's model.
        personal_without_noise: further patterns, where no noise is added.
        about: one line for people.
    """

    name: str
    personal: tuple[str, ...]
    routes: bool
    about: str
    beside: bool = False
    fits: bool = False
    shares: bool = False
    heads: bool = False
    head_first: bool = False
    tunes: bool = False
    proximal: bool = False
    personal_without_noise: tuple[str, ...] = ()

    def at(self, epsilon: float) -> Method:
        """The row at an epsilon of all stages; infinity is no noise."""
        if not math.isinf(epsilon) or not self.personal_without_noise:
            return self
        return replace(self, personal=self.personal + self.personal_without_noise, personal_without_noise=())


_HEAD: Final = ("target_head.*",)

METHODS: Final[Mapping[str, Method]] = {
    method.name: method
    for method in (
        Method(
            "feddrm",
            (),
            True,
            "one network (without noise: personal heads); stage 2 fits the router and a target head for all silos, "
            "from which stage 3 tunes every silo's own; a routed silo answers with both",
            fits=True,
            shares=True,
            heads=True,
            personal_without_noise=_HEAD,
        ),
        Method("feddrm-one", (), True, "the same, one network without noise, too", fits=True, shares=True, heads=True),
        Method("feddrm-untuned", (), True, "one network, no stage 3", fits=True, shares=True),
        Method("feddrm-joint", (), True, "a router trained in stage 1, too", True, fits=True, shares=True, heads=True),
        Method("feddrm-personal", _HEAD, True, "the paper's personal heads, and stage 2", True, fits=True, shares=True),
        Method("feddrm-no-shared", _HEAD, True, "personal heads, stage 2 fits the router alone", True, fits=True),
        Method("feddrm-stage1", _HEAD, True, "the same without stage 2: the paper's method", True),
        Method("feddrm-bias", ("target_head.bias",), True, "each silo's own bias", True, fits=True, shares=True),
        Method("fedavg", (), False, "one model for all"),
        Method("fedavg-shared", (), False, "one model, its target head fitted by stage 2", fits=True, shares=True),
        Method("fedavgft", (), False, "one model, then fine-tuned by every silo", tunes=True),
        Method("fedprox", (), False, "fedavg, pulled to the round's model", proximal=True),
        Method("fedper", _HEAD, False, "personal heads"),
        Method("fedrep", _HEAD, False, "personal heads, trained before the trunk in every round", head_first=True),
        Method("lg-fedavg", ("trunk.*",), False, "personal trunks, one head"),
        Method("fedbn", ("trunk.*norm*",), False, "personal normalisation layers"),
        Method("local", ("*",), False, "every silo by itself"),
    )
}
