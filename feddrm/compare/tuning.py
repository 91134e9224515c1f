"""Stage 3 in one process: every silo's own head by the deployment's code, or without privacy by full steps that are
neither clipped nor noised.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from feddrm.compare.batches import embedded
from feddrm.compare.data import Federation
from feddrm.compare.training import Tensors
from feddrm.contract.plan import Plan
from feddrm.contract.stages import PersonalHead
from feddrm.features import Dataset
from feddrm.method.layout import Scope, Tensor, layout_of
from feddrm.method.model import build, load, one_thread
from feddrm.method.personal import LateMean, begun, fine_tune
from feddrm.method.shared_head import SharedHead
from feddrm.method.update import Model, from_float, to_float

_SCOPES: Final[tuple[Scope, Scope]] = ("shared", "personal")


def tuned(
    plan: Plan,
    terms: PersonalHead,
    federation: Federation,
    networks: Sequence[Tensors],
    shared: SharedHead | None,
    seed: int,
    *,
    private: bool,
) -> tuple[Tensors, ...]:
    """Every silo's network with the head that stage 3 leaves.

    Args:
        plan: of the method, with this stage.
        terms: of the stage: target heads alone.
        federation: of the data.
        networks: that training left.
        shared: the target head of all silos, if there is one.
        seed: of draws and noise.
        private: whether gradients are clipped and noised.
    """
    if not private:
        pairs = zip(federation.silos, networks, strict=True)
        return tuple(_plain(plan, terms, data, network, shared) for data, network in pairs)
    layout, never, after = layout_of(plan), threading.Event(), []
    for silo, (data, network) in enumerate(zip(federation.silos, networks, strict=True)):
        model, personal = (_vector(network, layout.of(scope)) for scope in _SCOPES)
        entropy = np.random.default_rng([seed, 5, silo]).bytes
        size = federation.sizes[silo]
        own = fine_tune(plan, terms, layout, model, personal, data, size, entropy, never, shared)
        after.append({**network, **layout.split(to_float(own), "personal")})
    return tuple(after)


def _vector(network: Tensors, tensors: Sequence[Tensor]) -> Model:
    """Some tensors as one vector of a job's state."""
    return from_float(np.concatenate([np.zeros(0), *(network[tensor.name].reshape(-1) for tensor in tensors)]))


def _plain(plan: Plan, terms: PersonalHead, data: Dataset, tensors: Tensors, shared: SharedHead | None) -> Tensors:
    """Steps on all records, whatever the rate: without privacy there is no noise to draw against."""
    network = build(plan)
    load(network, tensors)
    if shared is not None:
        load(network, begun(shared))
    head = network.target_head
    optimizer = torch.optim.SGD(head.parameters(), lr=terms.learning_rate, momentum=terms.momentum)
    layout = layout_of(plan)
    mean = LateMean(terms, network, layout.own)
    rows, targets = embedded(network, data.features), torch.from_numpy(data.known_targets())
    with one_thread():
        for number in range(1, terms.steps + 1):
            optimizer.zero_grad()
            functional.cross_entropy(head(rows), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            mean.step(number)
    return {**tensors, **layout.split(mean.result().astype(np.float32), "personal")}
