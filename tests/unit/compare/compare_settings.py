"""A comparison that takes a second or two: RAND's six sites, which come with the package."""

from __future__ import annotations

import math
from typing import Any

from feddrm.compare.settings import Settings


def settings(**changes: Any) -> Settings:
    raw: dict[str, Any] = {
        "name": "small",
        "methods": ["feddrm", "feddrm-stage1", "fedavgft"],
        "epsilons": [math.inf],
        "delta": 1e-5,
        "seeds": [0],
        "data": {"source": "rand"},
        "model": {"kind": "mlp", "hidden": [4]},
        "train": {
            "rounds": 3,
            "local_steps": 2,
            "sampling_rate": 0.2,
            "learning_rate": 0.5,
            "momentum": 0.5,
            "private_learning_rate": 2.0,
            "target_weight": 0.5,
            "local_rounds": 1,
        },
        "fit": {"sums": 3, "average_from": 2, "epsilon_share": 0.4},
    }
    for key, value in changes.items():
        raw[key] = {**raw.get(key, {}), **value} if isinstance(value, dict) else value
    return Settings.model_validate(raw)
