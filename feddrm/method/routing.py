"""From embeddings to the silo whose patients a query resembles most (FedDRM, arXiv 2509.23049; design sections 1, 7).

Under the density ratio model log p_k(x) / p_0(x) = alpha_k + beta_k . g(x), a classifier of silos trained with class
weights w_k has logits log w_k + log p_k(x) + (something that is the same for all k). Subtracting log w_k leaves log
density ratios; the largest one is the route. Stage 1 weights silos equally, so its logits are ratios as they stand.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from feddrm.contract.errors import MalformedError, UnreachableError
from feddrm.method.layout import Layout
from feddrm.method.shared_head import linear_logits
from feddrm.method.update import Tensors, part_hash


def without_priors(bias: npt.NDArray[np.float32], weights: Sequence[float]) -> npt.NDArray[np.float32]:
    """The head's biases float32[K] after subtracting log weights, for heads fitted with unequal class weights.

    Args:
        bias: float32[K].
        weights: what each silo counted in the fit, positive, up to a common factor (such as its public size).

    Raises:
        ValueError: not K positive finite weights.
    """
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != bias.shape or not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError("one positive weight for each silo is needed")
    ratios: npt.NDArray[np.float64] = bias.astype(np.float64) - np.log(values / values.sum())
    return ratios.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Router:
    """A released routing head.

    Args:
        weights: float32[K, d], the tilts beta.
        bias: float32[K], the alphas, priors already subtracted.
        silos: K names in the plan's order.

    Raises:
        MalformedError: fewer than two silos, shapes that do not fit together, or a value that is not finite.
    """

    weights: npt.NDArray[np.float32] = field(repr=False)
    bias: npt.NDArray[np.float32] = field(repr=False)
    silos: tuple[str, ...]

    def __post_init__(self) -> None:
        count = len(self.silos)
        if count < 2:
            raise MalformedError("A router chooses between at least two silos.")
        if self.weights.ndim != 2 or self.weights.shape[0] != count or self.bias.shape != (count,):
            raise MalformedError(f"The routing head does not fit {count} silos.")
        if not (np.isfinite(self.weights).all() and np.isfinite(self.bias).all()):
            raise MalformedError("The routing head has values that are not finite.")

    @classmethod
    def from_tensors(cls, layout: Layout, tensors: Tensors, silos: Sequence[str]) -> Self:
        """A router from the tensors of a released head (`update.head_tensors`).

        Raises:
            MalformedError: the tensors are not those of the layout.
        """
        part_hash(layout, "routing", tensors)
        return cls(tensors["routing_head.weight"], tensors["routing_head.bias"], tuple(silos))

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return int(self.weights.shape[1])

    def log_ratios(self, phi: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """float64[n, K]: log density ratios of each embedding by itself, up to a constant of its row.

        They stay inside the router: no answer, log or metric carries them (design section 7, Answers).

        Raises:
            MalformedError: phi is not finite float32[n, d].
        """
        if phi.ndim != 2 or phi.shape[1] != self.width or phi.dtype != np.float32:
            raise MalformedError(f"An embedding is a row of {self.width} float32 values.")
        if not np.isfinite(phi).all():
            raise MalformedError("An embedding has values that are not finite.")
        return linear_logits(self.weights, self.bias, phi)

    def log_density_ratios(self, phi: npt.NDArray[np.float32], *, fitted: bool) -> npt.NDArray[np.float64]:
        """float64[n, K]: as `log_ratios`, on the scale on which differences are those of log densities.

        Args:
            phi: float32[n, d].
            fitted: whether stage 2 fitted this head, whose logits are the ratios times the norm of [phi, 1].

        Raises:
            MalformedError: phi is not finite float32[n, d].
        """
        ratios = self.log_ratios(phi)
        if fitted:
            ratios = ratios / np.sqrt(1.0 + np.square(phi.astype(np.float64)).sum(axis=1, keepdims=True))
        return ratios

    def nearest(
        self,
        phi: npt.NDArray[np.float32],
        eligible: Collection[str],
        tie: float,
        *,
        fitted: bool,
        questions: Sequence[int] | None = None,
    ) -> npt.NDArray[np.int64]:
        """int64[n, 2]: the place of the best-matching eligible silo, and of one that is nearly tied with it, else -1.

        A second opinion is worth most where the first is least sure. Who they are is decided among *all* silos: two
        are given where the second-best's density ratio is more than `tie` times the best one's, both answer the same
        question, and both are eligible. So whoever is away only ever takes a name out of a row; a third silo never
        comes in beside the first, whose ratios could otherwise be compared by waiting for, or causing, the absence of
        the one between. Which of two came first must stay inside the router, as every ranking.

        Args:
            phi: float32[n, d].
            eligible: names of silos that can be asked now; names unknown to this release are ignored.
            tie: in (0, 1]; 1 is never.
            fitted: as in `log_density_ratios`.
            questions: of the K silos, what each answers; only equal ones give a second opinion. None: all the same.

        Raises:
            MalformedError: phi is not finite float32[n, d].
            UnreachableError: no silo of this release is eligible.
            ValueError: tie is out of its range, or there are not K questions.
        """
        if not 0 < tie <= 1:
            raise ValueError("tie is a part of the larger density ratio")
        asked = np.zeros(len(self.silos), dtype=np.int64) if questions is None else np.asarray(questions)
        if asked.shape != (len(self.silos),):
            raise ValueError("every silo answers one question")
        allowed = self._allowed(eligible)
        ratios = self.log_density_ratios(phi, fitted=fitted)
        places = np.full((len(phi), 2), -1, dtype=np.int64)
        places[:, 0] = np.where(allowed, ratios, -np.inf).argmax(axis=1)
        pair = np.argsort(-ratios, axis=1, kind="stable")[:, :2]
        best = np.take_along_axis(ratios, pair, axis=1)
        tied = best[:, 1] > best[:, 0] + np.log(tie)
        both = allowed[pair].all(axis=1) & (asked[pair[:, 0]] == asked[pair[:, 1]])
        places[:, 1] = np.where(tied & both, pair[:, 1], -1)
        return places

    def route(
        self,
        phi: npt.NDArray[np.float32],
        eligible: Collection[str],
        tie: float = 1.0,
        *,
        fitted: bool = False,
        questions: Sequence[int] | None = None,
    ) -> tuple[tuple[str, ...], ...]:
        """The names of `nearest` for each of the n embeddings: one or two, in the plan's order, which tells no rank.

        Equal ratios go to the earlier silo of the plan. Arguments and errors as in `nearest`.
        """
        places = self.nearest(phi, eligible, tie, fitted=fitted, questions=questions)
        return tuple(tuple(self.silos[place] for place in sorted(row) if place >= 0) for row in places.tolist())

    def _allowed(self, eligible: Collection[str]) -> npt.NDArray[np.bool_]:
        allowed = np.array([name in eligible for name in self.silos], dtype=bool)
        if not allowed.any():
            raise UnreachableError("No silo of this release can be asked now.", remedy="Try again later.")
        return allowed
