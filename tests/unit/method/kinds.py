"""Plans of every kind of model, small enough for tests: what the registry test and the DP tests go through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feddrm.contract.plan import Plan

MakePlan = Callable[..., Plan]

IMAGE: dict[str, Any] = {"channels": 1, "height": 16, "width": 16, "lower": 0, "upper": 255}
# Every kind in the registry, by a document of it.
KINDS: dict[str, dict[str, Any]] = {
    "linear": {},
    "mlp": {"hidden": [9, 5]},
    "lenet_gn": {"channels": [2, 4], "hidden": 12, "units": 10},
    "resnet18_gn": {"width": 8, "units": 6},
    "frozen": {"sha256": "ab" * 32, "form": "torchscript", "features": 7, "hidden": [5]},
}
_TRAINING = {
    "rounds": 3,
    "local_steps": 1,
    "sampling_rate": 0.5,
    "clip_norm": 0.7,
    "noise_multiplier": 1.5,
    "target_weight": 0.4,
    "learning_rate": 0.25,
}


def plan_of(
    kind: str, *, image: Any = IMAGE, columns: bool | None = None, personal: Any = None, **training: Any
) -> Plan:
    """A plan over small images, or over four columns where `image` is None."""
    schema: dict[str, Any] = {"patient": "id", "target": {"kind": "classes", "column": "y", "values": ["0", "1"]}}
    if image is not None:
        schema["image"] = image
    if columns or (columns is None and image is None):
        schema["columns"] = [
            {"kind": "numeric", "name": f"x{index}", "lower": -1, "upper": 1, "missing_indicator": False}
            for index in range(4)
        ]
    model = {"kind": kind, **KINDS[kind]}
    if personal is not None:
        model["personal"] = list(personal)
    return Plan.model_validate(
        {
            "federation": "test",
            "name": "job",
            "roster_version": 1,
            "silos": ["site-a", "site-b", "site-c"],
            "schema": schema,
            "model": model,
            "training": _TRAINING | training,
            "privacy": {"delta": 1e-5},
            "secure_aggregation": {
                "threshold": 3,
                "minimum_cohort": 3,
                "colluders": 1,
                "clip": 4.0,
                "fraction_bits": 20,
            },
        }
    )
