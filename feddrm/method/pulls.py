"""Terms that pull weights back in local training: FedProx's proximal term, and elastic weight consolidation.

A pull is strength * (w - anchor), added to what a step releases *after* clipping and noise. It depends on weights that
were released already and on the plan, on no record: it is post-processing, costs nothing and is in no clip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull of some parameters.

    Args:
        anchors: tensors by the parameters' names; others are not pulled.
        strengths: likewise, tensors of their shapes or of one entry, not negative.
    """

    anchors: Mapping[str, torch.Tensor] = field(repr=False)
    strengths: Mapping[str, torch.Tensor] = field(repr=False)


def add_pulls(pulls: Sequence[Pull], moving: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
    """Add the pulls to the gradients of these parameters."""
    for name, parameter in moving:
        for pull in pulls:
            if name in pull.anchors and parameter.grad is not None:
                parameter.grad.add_(pull.strengths[name] * (parameter.detach() - pull.anchors[name]))
