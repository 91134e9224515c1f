"""Stages 2 and 3 and the judgement: from trained networks to figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from feddrm.compare.batches import embedded, target_logits
from feddrm.compare.budget import Noise
from feddrm.compare.data import Federation
from feddrm.compare.methods import Method
from feddrm.compare.metrics import Answers, Quality, measure
from feddrm.compare.settings import Settings
from feddrm.compare.training import Tensors
from feddrm.compare.tuning import tuned
from feddrm.contract.plan import Plan
from feddrm.method import routing_fit
from feddrm.method.model import TwoHeads, build, load
from feddrm.method.progress import fit_terms
from feddrm.method.routing import Router, without_priors
from feddrm.method.shared_head import SharedHead
from feddrm.method.update import MODEL_FRACTION_BITS, to_float
from privacy.discrete import DiscreteGaussianSource

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Judged:
    """The figures, and what the later stages cost.

    Args:
        quality: of the federation.
        bytes: that silos sent and received in stage 2.
        steps: of all silos in stage 3.
    """

    quality: Quality
    bytes: int
    steps: int


def judge(
    settings: Settings,
    federation: Federation,
    method: Method,
    plan: Plan,
    networks: Sequence[Tensors],
    noise: Noise | None,
    seed: int,
) -> Judged:
    """Run the method's stages 2 and 3, as far as it has them, and ask all models about the held-out records."""
    network = build(plan).eval()
    load(network, networks[0])
    queries = embedded(network, federation.features).numpy()
    router, shared, volume, steps = None, None, 0, 0
    if method.fits:
        router, shared, volume = fit(federation, network, plan, noise, seed)
    elif method.beside:
        router = _stage1(settings, federation, networks[0])
    if plan.personal_head is not None:
        networks = tuned(plan, plan.personal_head, federation, networks, shared, seed, private=noise is not None)
        steps = len(networks) * plan.personal_head.steps
    answers = answers_of(plan, federation, networks)
    if shared is not None:
        answers = _with_shared(answers, shared, queries, alone=not method.routes)
    if router is None or not method.routes:
        alike = not method.personal and not method.tunes and not method.heads
        return Judged(measure(answers, None, alike=alike), volume, steps)
    routes = router.nearest(queries, router.silos, plan.queries.second_opinion, fitted=method.fits)
    return Judged(measure(answers, routes), volume, steps)


def answers_of(plan: Plan, federation: Federation, networks: Sequence[Tensors]) -> Answers:
    """What all silos' models, and the one of averaged weights, say of the held-out records."""
    network = build(plan).eval()
    logits = np.stack([_logits(network, silo, federation.features) for silo in networks], axis=1)
    mean = {name: np.mean([silo[name] for silo in networks], axis=0) for name in networks[0]}
    return Answers(logits, _logits(network, mean, federation.features), federation.targets, federation.home)


def fit(
    federation: Federation, network: TwoHeads, plan: Plan, noise: Noise | None, seed: int
) -> tuple[Router, SharedHead | None, int]:
    """Stage 2 on the trunk of `network`: (router, target head of all silos if the plan has one, bytes that silos sent
    and received).
    """
    terms = fit_terms(plan)
    source = DiscreteGaussianSource(np.random.default_rng([seed, 4]).bytes)
    silos = [
        (
            routing_fit.patient_phi(embedded(network, silo.features).numpy(), silo.patients),
            routing_fit.patient_labels(silo.known_targets(), silo.patients, terms.classes),
        )
        for silo in federation.silos
    ]
    state = routing_fit.initial_state(terms)
    for _ in range(_sums(plan)):
        total = np.zeros(terms.words, dtype=np.int64)
        for number, (phi, labels) in enumerate(silos):
            total += routing_fit.contribution(terms, state, phi, number, labels)
            if noise is not None and noise.fit is not None:
                total += source.sample(terms.words, noise.fit.scale)
        state = routing_fit.advance(terms, state, total)
    weight, bias = (to_float(part.reshape(-1)).reshape(part.shape) for part in routing_fit.head(terms, state))
    shared = None
    if terms.classes:
        rows, constants = (np.ldexp(part, -MODEL_FRACTION_BITS) for part in routing_fit.target_head(terms, state))
        shared = SharedHead(rows, constants, plan.queries.shared_weight, plan.queries.home_weight)
    # 64 bits an entry, up and down.
    return Router(weight, bias, plan.silos), shared, _sums(plan) * len(silos) * 16 * terms.words


def _sums(plan: Plan) -> int:
    return plan.routing_fit.sums if plan.routing_fit is not None else 0


def _with_shared(answers: Answers, shared: SharedHead, queries: Floats, *, alone: bool) -> Answers:
    """What silos say where there is a head of all silos; `alone`: that head, and nothing of their own."""
    silos = answers.logits.transpose(1, 0, 2)
    asked, home = (1.0, 1.0) if alone else (shared.asked, shared.home)
    told = np.stack([shared.mixed(own, queries, asked) for own in silos], axis=1)
    own = answers.logits[np.arange(len(queries)), answers.home]
    common = shared.logits(queries).astype(np.float32)
    return replace(answers, told=told, at_home=shared.mixed(own, queries, home), shared=common)


def _stage1(settings: Settings, federation: Federation, tensors: Tensors) -> Router:
    """The router that stage 1 leaves; where silos counted by size, it holds their prior."""
    weight, bias = tensors["routing_head.weight"], tensors["routing_head.bias"]
    if settings.train.weights == "size":
        bias = without_priors(bias, federation.sizes)
    return Router(weight, bias, federation.names)


def _logits(network: TwoHeads, tensors: Tensors, features: Floats) -> Floats:
    load(network, tensors)
    return target_logits(network, features).numpy()
