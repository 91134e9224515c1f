"""The settings' section about drift."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from feddrm.contract.architecture import Pattern
from feddrm.contract.names import Document


class Drift(Document):
    """How --drift changes the mix of labels, and the consolidation that is to hold against it.

    Attributes:
        change: after half of the rounds at once, or "gradual", by equal steps over the other half.
        stays: the share of the classes that go that is left in the end; of those that come, as much was there before.
        strength: of consolidation: part of the strongest pull that a plan may have.
        memory: in rounds.
        anchored: whether weights are held where they stood when the change began, as a plan's `anchor_round` says, or
            where they stood on average.
        tensors: that are held: shell patterns.
    """

    change: Literal["abrupt", "gradual"] = "abrupt"
    stays: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    strength: Annotated[float, Field(gt=0, le=1)] = 0.5
    memory: Literal[2, 4, 8, 16, 32, 64, 128, 256] = 16
    anchored: bool = True
    tensors: Annotated[tuple[Pattern, ...], Field(min_length=1)] = ("target_head.*",)
