"""The demo's plan through stages 1 to 3 in one process, for `bench.routing_fit demo`.

Everything but the network: training by the silos' own trainers, sums of quantised updates, stage 2's integers, heads of
stage 3, and what a query's 2 bits a unit leave the router to see.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from bench.fit_case import Case, Fit, Fitted, Floats, judged, logits_of, run_fit
from bench.fit_data import Federation, rand_hie
from feddrm.contract.plan import Plan
from feddrm.contract.stages import LONGEST_RESIDUAL
from feddrm.demo import rand
from feddrm.features import Dataset
from feddrm.method.coarse import Grid
from feddrm.method.evaluation import held_out
from feddrm.method.layout import initial_model, initial_personal, layout_of
from feddrm.method.model import build, embed_each, load
from feddrm.method.personal import fine_tune
from feddrm.method.shared_head import SharedHead
from feddrm.method.trainer import Trainer
from feddrm.method.update import Model, apply, head_tensors, to_float, trunk_tensors
from privacy.events import PoissonSubsampledGaussian
from secagg.quantise import quantise

# What the clip norm is chosen from, on persons that are not reported.
CLIPS: Final = (LONGEST_RESIDUAL, 1.0, 0.7, 0.5, 0.35)

# Plans that differ in what the target heads begin with.
PLANS: Final[dict[str, dict[str, Any]]] = {
    "the demo's plan": {},
    "heads tuned from that of all silos": {"personal_head": {"start": "shared"}},
    "personal heads in training, too": {"model": {"personal": ["target_head.*"]}},
    "lambda 1": {"training": {"target_weight": 1.0}},
}


@dataclass(frozen=True, slots=True)
class _Trained:
    """What stage 1 left; `silos` are the records that it read."""

    silos: tuple[Dataset, ...] = field(repr=False)
    model: Model = field(repr=False)
    personal: tuple[Model, ...] = field(repr=False)


def demo_plan(changes: dict[str, Any]) -> Plan:
    """The demo's plan with other values in some sections."""
    document = rand.plan_document("rand", 1)
    for section, values in changes.items():
        document[section] = document[section] | values
    return Plan.model_validate(document)


def demo_rows(seed: int, clip: float, data: Federation | None = None) -> Iterator[dict[str, Any]]:
    """Each plan with the fit of router and head of all silos; the demo's also with the router alone.

    Args:
        clip: of the fit with a head of all silos.
        data: judged on its held-out records; the demo's if left out.
    """
    data = rand_hie() if data is None else data
    done: tuple[Plan, _Trained] | None = None
    for label, changes in PLANS.items():
        plan = demo_plan(changes)
        if done is None or (done[0].model, done[0].training) != (plan.model, plan.training):
            # Plans that train alike stand beside each other.
            done = plan, _train(plan, data, seed)
        fits = [_fit_of(plan, clip, plan.queries.shared_weight)]
        if not changes:
            fits.insert(0, _fit_of(plan, LONGEST_RESIDUAL, None))
        for fit in fits:
            yield _row(plan, data, done[1], seed, fit, label)


def choosing_rows(seed: int, data: Federation) -> Iterator[dict[str, Any]]:
    """The demo's plan at each clip norm, judged on persons that are held back from training."""
    plan = demo_plan({})
    trained = _train(plan, data, seed)
    for clip, weight in choices(0.5):
        label = f"the demo's plan, held back, weight {weight:g}"
        yield _row(plan, data, trained, seed, _fit_of(plan, clip, weight), label)


def choices(clip: float) -> Iterator[tuple[float, float]]:
    """(clip norm, weight of the head of all silos in an answer) to choose from: each clip norm at a weight of 0.7, and
    the other weights at `clip`."""
    yield from ((each, 0.7) for each in CLIPS)
    yield from ((clip, weight) for weight in (0.3, 0.5))


def _train(plan: Plan, data: Federation, seed: int) -> _Trained:
    generator = np.random.default_rng([seed, 77])
    assert plan.evaluation is not None
    layout, sums = layout_of(plan), plan.secure_aggregation
    name, silos = generator.bytes(32), []
    for silo in data.silos:
        held = held_out(generator.bytes(32), silo.patients, plan.evaluation.held_out)
        silos.append(silo.part(~held))
    trainers = [
        Trainer(plan, layout, silo, number, size, generator.bytes)
        for number, (silo, size) in enumerate(zip(silos, data.sizes, strict=True))
    ]
    model, personal = initial_model(layout, name), [initial_personal(layout, name) for _ in silos]
    for number in range(1, plan.training.rounds + 1):
        total = np.zeros(layout.shared_size, dtype=np.int64)
        for place, trainer in enumerate(trainers):
            update, personal[place] = trainer.train_round(model, personal[place], threading.Event(), number)
            total += quantise(update, sums.clip, sums.fraction_bits)
        model = apply(model, total, len(silos), sums.fraction_bits, plan.training.server_learning_rate)
    return _Trained(tuple(silos), model, tuple(personal))


def _row(plan: Plan, data: Federation, trained: _Trained, seed: int, fit: Fit, label: str) -> dict[str, Any]:
    layout, stage3 = layout_of(plan), plan.personal_head
    assert stage3 is not None
    assert plan.evaluation is not None
    network = build(plan).eval()
    load(network, layout.split(to_float(trained.model), "shared"))
    queries = embed_each(network, data.features)
    grid = Grid.of(plan, trunk_tensors(layout, trained.model))
    head = head_tensors(layout, trained.model)
    case = Case(
        replace(data, silos=trained.silos),
        f"rand, {label}, c {fit.clip_norm:.2g}" + ("" if fit.shared_weight is not None else ", router alone"),
        seed,
        plan.privacy.delta,
        tuple(embed_each(network, silo.features) for silo in trained.silos),
        queries,
        np.zeros((len(queries), len(data.silos), 2)),
        (head["routing_head.weight"], head["routing_head.bias"]),
        PoissonSubsampledGaussian(
            plan.training.noise_multiplier,
            plan.training.sampling_rate,
            plan.training.rounds * plan.training.local_steps,
        ),
        PoissonSubsampledGaussian(stage3.noise_multiplier, stage3.sampling_rate, stage3.steps),
        seen=grid.decode(grid.encode(queries)),
        others=(plan.evaluation.event(plan.shares),),
    )
    fitted = run_fit(case, fit, "shares")
    answers = logits_of(_heads(plan, data, trained, seed, fitted), queries)
    return judged(replace(case, answers=answers), fit, fitted)


def _heads(
    plan: Plan, data: Federation, trained: _Trained, seed: int, fitted: Fitted
) -> tuple[tuple[Floats, Floats], ...]:
    layout, generator, stage3 = layout_of(plan), np.random.default_rng([seed, 3]), plan.personal_head
    assert stage3 is not None
    shared = None
    if stage3.start == "shared" and fitted.shared is not None:
        weight, bias = (tensor.astype(np.float64) for tensor in fitted.shared)
        shared = SharedHead(weight, bias, 0.0, 0.0)
    heads = []
    for silo, size, before in zip(trained.silos, data.sizes, trained.personal, strict=True):
        personal = fine_tune(
            plan, stage3, layout, trained.model, before, silo, size, generator.bytes, threading.Event(), shared
        )
        own = layout.split(to_float(personal), "personal")
        heads.append((own["target_head.weight"].copy(), own["target_head.bias"].copy()))
    return tuple(heads)


def _fit_of(plan: Plan, clip: float, shared_weight: float | None) -> Fit:
    fit = plan.routing_fit
    assert fit is not None
    return Fit(
        fit.sums,
        fit.noise_multiplier,
        fit.step_size,
        fit.momentum,
        fit.average_from,
        plan.shares,
        clip,
        shared_weight,
        plan.queries.home_weight,
    )
