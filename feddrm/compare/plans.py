"""The plan that a method's row and a comparison's settings amount to: what an operator would sign for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from feddrm.compare.budget import FRACTION_BITS, Noise, Terms
from feddrm.compare.data import Federation
from feddrm.compare.methods import Method
from feddrm.compare.settings import Settings
from feddrm.contract.documents import explain
from feddrm.contract.errors import InputError
from feddrm.contract.plan import Plan, default_threshold
from feddrm.contract.training import MOST_IMPORTANT

# Updates of these plans stay within: a step of 0.01 with momentum 0.9 moves a weight by much less in ten steps.
_CLIP = 4.0
_RING = 1 << 30


def terms_of(settings: Settings, federation: Federation, method: Method, epsilon: float) -> Terms:
    """What a method at a whole epsilon asks of the accountant."""
    train, fit = settings.train, settings.fit
    plan = plan_of(settings, federation, method, None)
    steps = train.rounds * train.local_steps
    terms = Terms(epsilon, settings.delta, train.sampling_rate, steps)
    if method.fits:
        terms = replace(
            terms,
            sums=fit.sums,
            words=plan.fit_entries,
            shares=plan.shares,
            fit_share=fit.epsilon_share,
            clip_norm=fit.clip_norm,
        )
    if method.heads:
        tune = settings.tune
        terms = replace(terms, tune_steps=tune.steps, tune_rate=tune.sampling_rate, tune_share=tune.epsilon_share)
    return terms


def plan_of(
    settings: Settings,
    federation: Federation,
    method: Method,
    noise: Noise | None,
    *,
    alone: bool = False,
    consolidation: Mapping[str, Any] | None = None,
) -> Plan:
    """A method's plan.

    Args:
        settings: of the comparison.
        federation: of the data.
        method: the row.
        noise: of the accountant; without it the noise in the plan is of no use.
        alone: for rounds that are not averaged: every tensor is personal.
        consolidation: the plan's `training.ewc`, of whose `strength` 1 is the strongest that a plan may have.

    Raises:
        InputError: the settings contradict one another, or the records; names the plan's key.
    """
    train, silos = settings.train, len(federation.silos)
    threshold = default_threshold(silos)
    private = noise is not None
    rate = (train.private_learning_rate or train.learning_rate) if private else train.learning_rate
    proximal = train.proximal_mu if method.proximal else 0.0
    ewc: dict[str, Any] = {}
    if consolidation:
        strongest = 0.999 * (1.0 / rate - proximal) / MOST_IMPORTANT
        ewc = {"ewc": {**consolidation, "strength": consolidation["strength"] * strongest}}
    document: dict[str, Any] = {
        "federation": "compare",
        "name": method.name,
        "roster_version": 1,
        "silos": list(federation.names),
        "schema": federation.schema.model_dump(mode="json", by_alias=True),
        "model": {**settings.model.model_dump(mode="json"), "personal": ["*"] if alone else list(method.personal)},
        "training": {
            "rounds": train.rounds,
            "local_steps": train.local_steps,
            "sampling_rate": train.sampling_rate,
            "clip_norm": train.clip_norm,
            "noise_multiplier": noise.training if noise is not None else 1.0,
            "target_weight": train.target_weight if method.beside else 1.0,
            "learning_rate": rate,
            **_optional(
                momentum=train.private_momentum if private else train.momentum,
                decay=train.decay,
                head_steps=train.head_steps if method.head_first and not alone else 0,
                proximal_mu=proximal,
            ),
            **ewc,
        },
        "privacy": {"delta": settings.delta},
        "secure_aggregation": {
            "threshold": threshold,
            "minimum_cohort": threshold,
            "colluders": 1,
            "clip": _CLIP,
            "fraction_bits": fraction_bits(silos),
        },
    }
    if method.fits:
        fit = settings.fit
        document["routing_fit"] = {
            "sums": fit.sums,
            "noise_multiplier": noise.fit.noise_multiplier if noise is not None and noise.fit is not None else 1.0,
            "step_size": fit.step_size,
            "momentum": fit.momentum,
            "average_from": min(fit.average_from, fit.sums),
            "fraction_bits": FRACTION_BITS,
            "public_sizes": dict(zip(federation.names, federation.sizes, strict=True)),
            "clip_norm": fit.clip_norm,
            "shared_target": method.shares,
        }
    if method.heads:
        tune = settings.tune
        document["personal_head"] = {
            "steps": tune.steps,
            "sampling_rate": tune.sampling_rate,
            "noise_multiplier": (noise.tuning if noise is not None else None) or 1.0,
            "clip_norm": tune.clip_norm,
            "learning_rate": tune.private_learning_rate if private else tune.learning_rate,
            "momentum": tune.momentum,
            "average_from": min(tune.average_from, tune.steps),
            "start": "shared" if method.shares else "trained",
        }
    queries: dict[str, float] = {}
    if method.routes:
        queries["second_opinion"] = settings.fit.tie
    if method.shares:
        queries |= {"shared_weight": settings.fit.shared_weight, "home_weight": settings.fit.home_weight}
    document["queries"] = queries
    try:
        return Plan.model_validate(document)
    except ValidationError as error:
        raise InputError(
            f"The settings make no plan for {method.name}: {explain(error, document, Plan)[0]}."
        ) from error


def fraction_bits(silos: int) -> int:
    """The finest quantiser that a sum over so many silos leaves room for, at most 24 bits."""
    return min(24, int(math.log2(_RING / (silos * (_CLIP + 1)))))


def _optional(**fields: float | str) -> dict[str, float | str]:
    return {name: value for name, value in fields.items() if value not in (0, "none")}
