"""What the attacks of test_peers_failures* have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from secagg_harness import Session

Vector = NDArray[np.uint32]


def ready_states(session: Session) -> dict[str, Any]:
    """What each silo knows before it masks. An attack takes from it only what its attacker holds."""
    return {name: session.clients[name].receive(frames)._data for name, frames in session.server.outgoing.items()}


def small(values: Vector, bound: int) -> bool:
    """Whether all entries are as small as an honest update's; of random entries one in 2^32 / (2 bound) is."""
    return bool(np.all(np.abs(values.view(np.int32).astype(np.int64)) <= bound))
