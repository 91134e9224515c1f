"""Small terms of a routing fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from feddrm.method.routing_fit import Terms, initial_state

Integers = np.ndarray


def terms(silos: int = 3, width: int = 4, **changes: Any) -> Terms:
    values = {
        "fraction_bits": 20,
        "step_size": 2.0,
        "momentum": 0.9,
        "average_from": 3,
        "public_sizes": tuple(100 * (k + 1) for k in range(silos)),
    }
    return Terms(silos=silos, width=width, **(values | changes))


def with_head(of: Terms, weights: np.ndarray) -> Integers:
    state = initial_state(of)
    state[1 : 1 + of.words] = weights.reshape(-1)
    return state
