"""What a network makes of many records, batch by batch: faster than one by one, as the deployment does it, by far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from feddrm.method.model import TwoHeads, one_thread

_BATCH: Final = 1024


def embedded(network: TwoHeads, features: npt.NDArray[np.float32]) -> torch.Tensor:
    """phi, float32[n, embedding width], of features float32[n, d]."""
    return _each(network.embed, features)


def target_logits(network: TwoHeads, features: npt.NDArray[np.float32]) -> torch.Tensor:
    """float32[n, classes], likewise."""
    return _each(lambda batch: network(batch)[0], features)


def _each(work: Callable[[torch.Tensor], torch.Tensor], features: npt.NDArray[np.float32]) -> torch.Tensor:
    # Not inference_mode: what it makes cannot be trained on.
    with torch.no_grad(), one_thread():
        return torch.cat([work(batch) for batch in torch.split(torch.from_numpy(features), _BATCH)])
