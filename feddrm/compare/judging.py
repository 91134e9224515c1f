"""Stage 2 and the judgement: from trained networks to figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from feddrm.compare.budget import FRACTION_BITS, Noise
from feddrm.compare.data import Federation
from feddrm.compare.methods import Method
from feddrm.compare.metrics import Answers, Quality, measure
from feddrm.compare.settings import Fit, Settings
from feddrm.compare.training import Tensors
from feddrm.contract.plan import Plan
from feddrm.method import routing_fit
from feddrm.method.model import TwoHeads, build, load, one_thread
from feddrm.method.routing import Router, without_priors
from feddrm.method.update import to_float
from privacy.discrete import DiscreteGaussianSource

Floats = npt.NDArray[np.float32]

_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Judged:
    """The figures, and what stage 2 cost.

    Args:
        quality: of the federation.
        bytes: that silos sent and received in stage 2.
    """

    quality: Quality
    bytes: int


def judge(
    settings: Settings,
    federation: Federation,
    method: Method,
    plan: Plan,
    networks: Sequence[Tensors],
    noise: Noise | None,
    seed: int,
) -> Judged:
    """Fit the router where the method has stage 2, and ask all models about the held-out records."""
    answers = answers_of(plan, federation, networks)
    if not method.routes:
        return Judged(measure(answers, None, alike=not method.personal and not method.tunes), 0)
    network = build(plan).eval()
    load(network, networks[0])
    queries = _embeddings(network, federation.features)
    if method.fits:
        router, volume = fit(settings.fit, federation, network, plan, noise, seed)
    else:
        router, volume = _stage1(settings, federation, networks[0]), 0
    routes = router.nearest(queries, router.silos, settings.fit.tie, fitted=method.fits)
    return Judged(measure(answers, routes), volume)


def answers_of(plan: Plan, federation: Federation, networks: Sequence[Tensors]) -> Answers:
    """What all silos' models, and the one of averaged weights, say of the held-out records."""
    network = build(plan).eval()
    logits = np.stack([_logits(network, silo, federation.features) for silo in networks], axis=1)
    mean = {name: np.mean([silo[name] for silo in networks], axis=0) for name in networks[0]}
    return Answers(logits, _logits(network, mean, federation.features), federation.targets, federation.home)


def fit(
    terms: Fit, federation: Federation, network: TwoHeads, plan: Plan, noise: Noise | None, seed: int
) -> tuple[Router, int]:
    """Stage 2 on the trunk of `network`: (router, bytes that silos sent and received)."""
    core = routing_fit.Terms(
        len(federation.silos),
        network.routing_head.in_features,
        FRACTION_BITS,
        terms.step_size,
        terms.momentum,
        min(terms.average_from, terms.sums),
        federation.sizes,
    )
    source = DiscreteGaussianSource(np.random.default_rng([seed, 4]).bytes)
    phi = [routing_fit.patient_phi(_embeddings(network, silo.features), silo.patients) for silo in federation.silos]
    state = routing_fit.initial_state(core)
    for _ in range(terms.sums):
        total = np.zeros(core.words, dtype=np.int64)
        for number, rows in enumerate(phi):
            total += routing_fit.contribution(core, state, rows, number)
            if noise is not None and noise.fit is not None:
                total += source.sample(core.words, noise.fit.scale)
        state = routing_fit.advance(core, state, total)
    weight, bias = (to_float(part.reshape(-1)).reshape(part.shape) for part in routing_fit.head(core, state))
    # 64 bits an entry, up and down.
    return Router(weight, bias, plan.silos), terms.sums * len(phi) * 16 * core.words


def _stage1(settings: Settings, federation: Federation, tensors: Tensors) -> Router:
    """The router that stage 1 leaves; where silos counted by size, it holds their prior."""
    weight, bias = tensors["routing_head.weight"], tensors["routing_head.bias"]
    if settings.train.weights == "size":
        bias = without_priors(bias, federation.sizes)
    return Router(weight, bias, federation.names)


def _logits(network: TwoHeads, tensors: Tensors, features: Floats) -> Floats:
    load(network, tensors)
    with torch.inference_mode(), one_thread():
        batches = torch.split(torch.from_numpy(features), _BATCH)
        return np.concatenate([network(batch)[0].numpy() for batch in batches])


def _embeddings(network: TwoHeads, features: Floats) -> Floats:
    with torch.inference_mode(), one_thread():
        return np.concatenate(
            [network.embed(batch).numpy() for batch in torch.split(torch.from_numpy(features), _BATCH)]
        )
