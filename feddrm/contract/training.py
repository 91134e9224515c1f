"""The plan's section for stage 1: how silos train, and what shapes their steps after the noise."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from feddrm.contract.architecture import Pattern
from feddrm.contract.names import Grown

# No weight is held more strongly than this many times the mean.
MOST_IMPORTANT: Final = 10

SamplingRate = Annotated[float, Field(ge=1e-6, le=1)]
# Bounds on what is multiplied with gradients and powers of two: no plan leads into denormal numbers or overflow.
ClipNorm = Annotated[float, Field(ge=1e-6, le=1e6)]
LearningRate = Annotated[float, Field(ge=1e-9, le=1e6)]


class Consolidation(Grown):
    """Elastic weight consolidation: shared weights that earlier rounds needed are held (feddrm.method.consolidation).

    Attributes:
        strength: of the pull on a weight of mean importance.
        memory: in rounds, a power of two: what is older counts little.
        anchor_round: weights are held where they stood, and as they were needed, when so many rounds were published;
            before, nothing is. None: where they stood on average.
        tensors: shell patterns of the shared tensors that are held; the routing head never is.
    """

    later: ClassVar[frozenset[str]] = frozenset({"anchor_round", "tensors"})

    strength: Annotated[float, Field(gt=0, le=1e6)]
    memory: Literal[2, 4, 8, 16, 32, 64, 128, 256] = 16
    anchor_round: Annotated[int | None, Field(ge=1, le=10_000)] = None
    tensors: Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=64)] = ("*",)

    @property
    def shift(self) -> int:
        """Binary logarithm of the memory."""
        return self.memory.bit_length() - 1


class Training(Grown):
    """Stage 1: DP-SGD on both losses. From `sampling_rate`, `noise_multiplier` and rounds * local_steps follows
    the charge of a completed job, the same for every silo whatever its size.

    A release takes at least `minimum_rounds` published rounds (default: half of them, rounded up), or a coordinator
    that declares rounds lost could have an untrained model signed.

    `target_weight` is the paper's lambda: loss = lambda * CE(target) + (1 - lambda) * CE(silo).

    What shapes the local steps and costs no privacy, since it works on what was noised (feddrm.method.pulls):

    - `momentum` of the steps of one round, and `decay` of the local learning rate over rounds, to zero as a cosine;
    - `proximal_mu`: shared weights are pulled to those that the round began with (FedProx);
    - `ewc`: and to those of earlier rounds, each as strongly as it was needed;
    - `head_steps`: the first so many steps of a round move the personal tensors only, the others the shared ones only
      (FedRep); 0 for steps that move all.
    """

    later: ClassVar[frozenset[str]] = frozenset({"momentum", "decay", "proximal_mu", "head_steps", "ewc"})

    rounds: Annotated[int, Field(ge=0, le=10_000)]
    local_steps: Annotated[int, Field(ge=1, le=10_000)]
    sampling_rate: SamplingRate
    clip_norm: ClipNorm
    noise_multiplier: Annotated[float, Field(ge=0.3, le=1000)]
    target_weight: Annotated[float, Field(ge=0, le=1)]
    learning_rate: LearningRate
    server_learning_rate: Annotated[float, Field(ge=2**-24, lt=128)] = 1.0
    minimum_rounds: Annotated[int | None, Field(ge=0, le=10_000)] = None
    momentum: Annotated[float, Field(ge=0, le=0.999)] = 0.0
    decay: Literal["none", "cosine"] = "none"
    proximal_mu: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    head_steps: Annotated[int, Field(ge=0, le=10_000)] = 0
    ewc: Consolidation | None = None

    @model_validator(mode="after")
    def _steady(self) -> Self:
        if self.learning_rate * self.proximal_mu > 1:
            raise ValueError("proximal_mu: times learning_rate more than 1, so that a step overshoots what it pulls to")
        if self.ewc and self.learning_rate * (self.proximal_mu + MOST_IMPORTANT * self.ewc.strength) > 1:
            raise ValueError(
                f"ewc.strength: {MOST_IMPORTANT} times it and proximal_mu, times learning_rate more than 1, so that a "
                "step overshoots what it pulls to"
            )
        if self.ewc and self.ewc.anchor_round is not None and self.ewc.anchor_round >= self.rounds:
            raise ValueError(f"ewc.anchor_round: of the {self.rounds} rounds none is left to hold weights in")
        if self.head_steps and self.head_steps >= self.local_steps:
            raise ValueError(f"head_steps: of the {self.local_steps} local_steps none is left for the shared tensors")
        return self

    def rate(self, number: int) -> float:
        """The local learning rate of round `number`, from 1 (Loshchilov and Hutter 2017, arXiv 1608.03983)."""
        if self.decay == "none":
            return self.learning_rate
        return 0.5 * self.learning_rate * (1 + math.cos(math.pi * (number - 1) / max(self.rounds, 1)))

    @property
    def required_rounds(self) -> int:
        """The fewest published rounds that may be released."""
        return self.minimum_rounds if self.minimum_rounds is not None else (self.rounds + 1) // 2
