"""Stage 3 for `bench.routing_fit`: every silo's own head, tuned by the deployment's own code.

As the linear model has it: on features, or on what a trunk makes of them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.fit_data import Federation
from feddrm.contract.plan import Plan
from feddrm.contract.schema import Schema
from feddrm.contract.stages import PersonalHead
from feddrm.features import Dataset
from feddrm.method.layout import initial_model, initial_personal, layout_of
from feddrm.method.personal import fine_tune
from feddrm.method.shared_head import SharedHead
from feddrm.method.update import from_float, to_float

Floats = npt.NDArray[np.float32]
Head = tuple[Floats, Floats]


def tuned_heads(
    data: Federation,
    tune: PersonalHead,
    seed: int,
    start: Sequence[Head] | None = None,
    shared: Head | None = None,
) -> tuple[Head, ...]:
    """(weight, bias) of each silo.

    Args:
        data: with a schema; its features are what the heads see.
        start: the heads that stage 1 left, if there was one.
        shared: the target head of all silos that stage 2 left, to begin with instead.
    """
    if shared is not None:
        tune = tune.model_copy(update={"start": "shared"})
    plan = _plan(data)
    layout = layout_of(plan)
    generator = np.random.default_rng([seed, 3])
    common = None
    if shared is not None:
        weight, bias = shared
        common = SharedHead(weight.astype(np.float64), bias.astype(np.float64), 0.0, 0.0)
    heads = []
    for number, (silo, size) in enumerate(zip(data.silos, data.sizes, strict=True)):
        # The plan's hash decides the first weights: another for each seed.
        before = initial_personal(layout, seed.to_bytes(32))
        if start is not None:
            before = from_float(np.concatenate([part.reshape(-1) for part in start[number]]).astype(np.float64))
        model = initial_model(layout, bytes(32))
        personal = fine_tune(plan, tune, layout, model, before, silo, size, generator.bytes, threading.Event(), common)
        parts = layout.split(to_float(personal), "personal")
        heads.append((parts["target_head.weight"].copy(), parts["target_head.bias"].copy()))
    return tuple(heads)


def embedded(data: Federation, embeddings: Sequence[Floats], queries: Floats, classes: int) -> Federation:
    """The same patients as a trunk shows them, each unit within [-1, 1]."""
    columns = [
        {"kind": "numeric", "name": f"unit {number}", "lower": -1, "upper": 1, "missing_indicator": False}
        for number in range(queries.shape[1])
    ]
    target = {"kind": "classes", "column": "target", "values": [str(number) for number in range(classes)]}
    schema = Schema.model_validate({"patient": "patient", "target": target, "columns": columns})
    silos = tuple(Dataset(rows, silo.targets, silo.patients) for rows, silo in zip(embeddings, data.silos, strict=True))
    return replace(data, silos=silos, features=queries, schema=schema)


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
