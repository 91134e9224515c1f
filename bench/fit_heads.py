"""Stage 3 for `bench.routing_fit`: every silo's own head, tuned by the deployment's own code on the linear model."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.fit_data import Federation
from feddrm.contract.plan import Plan
from feddrm.contract.stages import PersonalHead
from feddrm.method.layout import initial_model, initial_personal, layout_of
from feddrm.method.personal import fine_tune
from feddrm.method.update import to_float

Floats = npt.NDArray[np.float32]


def tuned_heads(data: Federation, tune: PersonalHead, seed: int) -> tuple[tuple[Floats, Floats], ...]:
    """(weight, bias) of each silo."""
    plan = _plan(data)
    layout = layout_of(plan)
    generator = np.random.default_rng([seed, 3])
    heads = []
    for silo, size in zip(data.silos, data.sizes, strict=True):
        # The plan's hash decides the first weights: another for each seed.
        start = initial_personal(layout, seed.to_bytes(32))
        model = initial_model(layout, bytes(32))
        personal = fine_tune(plan, tune, layout, model, start, silo, size, generator.bytes, threading.Event())
        parts = layout.split(to_float(personal), "personal")
        heads.append((parts["target_head.weight"].copy(), parts["target_head.bias"].copy()))
    return tuple(heads)


def _plan(data: Federation) -> Plan:
    silos = [f"silo-{number}" for number in range(len(data.silos))]
    document: dict[str, Any] = {
        "federation": "bench",
        "name": data.name.replace(" ", "-"),
        "roster_version": 1,
        "silos": silos,
        "schema": data.schema,
        "model": {"kind": "linear"},
        "training": {
            "rounds": 0,
            "local_steps": 1,
            "sampling_rate": 1.0,
            "clip_norm": 1.0,
            "noise_multiplier": 1.0,
            "target_weight": 0.5,
            "learning_rate": 1.0,
        },
        "privacy": {"delta": 1e-5},
        "secure_aggregation": {
            "threshold": len(silos) * 2 // 3 + 1,
            "minimum_cohort": len(silos) * 2 // 3 + 1,
            "colluders": 1,
            "clip": 1.0,
            "fraction_bits": 16,
        },
    }
    return Plan.model_validate(document)
