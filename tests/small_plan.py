"""A plan of few numbers, which tests change where something depends on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def plan_document(silos: Iterable[str], **changes: Any) -> dict[str, Any]:
    """As a TOML file would have it. `changes` replace what stands at the top or, named section__key, one key of a
    section, in order."""
    document: dict[str, Any] = {
        "federation": "retina",
        "name": "first",
        "roster_version": 1,
        "silos": list(silos),
        "schema": {
            "patient": "id",
            "target": {"kind": "threshold", "column": "y", "operator": ">", "value": 0.0, "labels": ["no", "yes"]},
            "columns": [{"kind": "numeric", "name": "x", "lower": 0.0, "upper": 1.0}],
        },
        "model": {"kind": "mlp", "hidden": [4]},
        "training": {
            "rounds": 3,
            "local_steps": 5,
            "sampling_rate": 0.04,
            "clip_norm": 1.0,
            "noise_multiplier": 1.5,
            "target_weight": 0.5,
            "learning_rate": 0.1,
        },
        "privacy": {"delta": 1e-5},
        "secure_aggregation": {"threshold": 3, "minimum_cohort": 3, "colluders": 1, "clip": 1.0, "fraction_bits": 20},
    }
    for key, value in changes.items():
        section, _, inner = key.partition("__")
        document[section] = {**document[section], inner: value} if inner else value
    return document
