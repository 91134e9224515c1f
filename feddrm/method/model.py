"""The two-headed network of FedDRM (arXiv 2509.23049) in torch, filled and read in the order of the layout."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from feddrm.contract.errors import MalformedError
from feddrm.contract.plan import Plan
from feddrm.method.layout import Layout, Scope, Tensor, embedding_width, layout_of
from feddrm.method.networks import make_trunk
from feddrm.method.shared_head import SharedHead, answers, linear_logits
from feddrm.method.update import Model, Tensors, part_hash, to_float


class TwoHeads(nn.Module):
    """A trunk g, a routing head (one logit a silo) and a target head, both linear in phi = g(x).

    Parameter names are those of the layout.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.width = plan.width
        self.trunk = make_trunk(plan.model, plan.shape)
        self.routing_head = nn.Linear(embedding_width(plan), len(plan.silos))
        self.target_head = nn.Linear(embedding_width(plan), len(plan.schema_.target.classes))

    def embed(self, features: torch.Tensor) -> torch.Tensor:
        """phi, float32[n, embedding width], of features float32[n, d]."""
        phi: torch.Tensor = self.trunk(features)
        return phi

    def routing(self, phi: torch.Tensor) -> torch.Tensor:
        """Logits float32[n, K] of "which silo"."""
        logits: torch.Tensor = self.routing_head(phi)
        return logits

    def target(self, phi: torch.Tensor) -> torch.Tensor:
        """Logits float32[n, classes] of the target."""
        logits: torch.Tensor = self.target_head(phi)
        return logits

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(target logits, routing logits)."""
        phi = self.embed(features)
        return self.target(phi), self.routing(phi)


def build(plan: Plan) -> TwoHeads:
    """The plan's network, its parameters checked against the layout and *not yet loaded*."""
    module = TwoHeads(plan)
    expected = {tensor.name: tensor.shape for tensor in layout_of(plan).tensors}
    actual = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    if actual != expected or dict(module.named_buffers()):
        raise AssertionError("the network and its layout disagree")
    return module


def load(module: nn.Module, tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Copy named arrays into the parameters of the same names.

    Raises:
        KeyError: the module has no such parameter.
        ValueError: the shapes differ.
    """
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, values in tensors.items():
            parameter = parameters[name]
            if tuple(parameter.shape) != values.shape:
                raise ValueError(f"tensor {name} has shape {values.shape}, not {tuple(parameter.shape)}")
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Arithmetic of torch on one thread: more divide a product into other shapes, by a rule of the library's own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def embed_each(module: TwoHeads, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """phi float32[n, embedding width] of features float32[n, d], every record embedded by itself in one same place.

    In a batch the last bit of an embedding depends on the batch's size and on the record's place in it, so that one
    patient would move the others' (see `feddrm.method.dpsgd`). Here a record's is the same whoever else is there.

    Raises:
        MalformedError: the features are not finite float32[n, d].
    """
    rows = _checked(features, module.width)
    result = np.empty((len(rows), module.routing_head.in_features), dtype=np.float32)
    place = torch.zeros((1, module.width))
    with torch.inference_mode(), one_thread():
        for index in range(len(rows)):
            place.copy_(rows[index : index + 1])
            result[index] = module.embed(place)[0].numpy()
    return result


def read(module: nn.Module, layout: Layout, scope: Scope) -> npt.NDArray[np.float64]:
    """The shared or personal vector, float64[n], in layout order."""
    return read_tensors(module, layout.of(scope))


def read_tensors(module: nn.Module, tensors: Iterable[Tensor]) -> npt.NDArray[np.float64]:
    """Some tensors one after another, float64[n]."""
    parameters = dict(module.named_parameters())
    parts = [parameters[tensor.name].detach().numpy().reshape(-1) for tensor in tensors]
    return np.concatenate([np.zeros(0), *parts]).astype(np.float64)


def load_vectors(module: nn.Module, layout: Layout, model: Model, personal: Model) -> None:
    """Fill a network from the shared and the personal fixed-point vector: a silo's own copies take precedence.

    Raises:
        MalformedError: an entry is out of range.
        ValueError: a vector has another length.
    """
    load(module, layout.split(to_float(model), "shared"))
    load(module, layout.split(to_float(personal), "personal"))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a silo says of n records: classes int64[n] and probabilities float32[n, classes]."""

    classes: npt.NDArray[np.int64] = field(repr=False)
    probabilities: npt.NDArray[np.float32] = field(repr=False)

    @classmethod
    def of(cls, probabilities: npt.NDArray[np.float32]) -> Self:
        """The likeliest class of each record; ties go to the earlier one."""
        return cls(probabilities.argmax(axis=1).astype(np.int64), probabilities)


@dataclass(frozen=True, slots=True)
class Opinions:
    """All that a silo makes of n records, each of them by itself, to the last bit.

    Args:
        embeddings: float32[n, d] of the shared trunk, zeros where not usable.
        usable: bool[n], whether the embeddings are finite: a query that is not is refused, and counted as wrong.
        home: what is said of the silo's own patients.
        asked: what a querier is told.
    """

    embeddings: npt.NDArray[np.float32] = field(repr=False)
    usable: npt.NDArray[np.bool_] = field(repr=False)
    home: Prediction
    asked: Prediction


class Predictor:
    """What a silo answers with: the shared trunk with the silo's personal target head, and the head of all silos if
    there is one; for inference only. The evaluation counts what this says, so that the two cannot disagree.

    Args:
        plan: of the job, as the silo computes by it.
        model: int64 shared vector.
        personal: int64 personal vector.
        shared: the head of all silos, if this one answers with it.
    """

    def __init__(self, plan: Plan, model: Model, personal: Model, shared: SharedHead | None = None) -> None:
        self._module = build(plan).eval()
        self._shared = shared
        layout = layout_of(plan)
        load_vectors(self._module, layout, model, personal)
        self._trunk = self._module
        if any(name.startswith("trunk.") for name in layout.split(personal, "personal")):
            # The silo's own model has a trunk of its own; queriers and the shared head know the shared one.
            self._trunk = build(plan).eval()
            load(self._trunk, layout.split(to_float(model), "shared"))

    def opinions(self, features: npt.NDArray[np.float32]) -> Opinions:
        """All of it, of features float32[n, d].

        Raises:
            MalformedError: the features are not finite float32[n, d].
        """
        embeddings = embed_each(self._trunk, features)
        usable = np.asarray(np.isfinite(embeddings).all(axis=1))
        mine = embeddings
        if self._trunk is not self._module:
            mine = embed_each(self._module, features)
            usable &= np.isfinite(mine).all(axis=1)
        embeddings, mine = (np.where(usable[:, None], rows, np.float32(0)) for rows in (embeddings, mine))
        head = self._module.target_head
        own = linear_logits(head.weight.detach().numpy(), head.bias.detach().numpy(), mine)
        shared = self._shared
        home, asked = (None, None) if shared is None else (shared.home, shared.asked)
        said = {part: Prediction.of(answers(own, shared, embeddings, part)) for part in {home, asked}}
        return Opinions(embeddings, usable, said[home], said[asked])

    def predict(self, features: npt.NDArray[np.float32]) -> Prediction:
        """What is said of the silo's own patients, features float32[n, d].

        Raises:
            MalformedError: the features are not finite float32[n, d], or what the models make of them is not.
        """
        return self._usable(features).home

    def answer(self, features: npt.NDArray[np.float32]) -> Prediction:
        """What a querier is told of features float32[n, d].

        Raises:
            MalformedError: the features are not finite float32[n, d], or what the models make of them is not.
        """
        return self._usable(features).asked

    def _usable(self, features: npt.NDArray[np.float32]) -> Opinions:
        opinions = self.opinions(features)
        if not opinions.usable.all():
            raise MalformedError("What the model makes of these features is not finite.")
        return opinions


class Embedder:
    """The released trunk at a querier: features in, embeddings out, those that the evaluation counted on."""

    def __init__(self, module: TwoHeads) -> None:
        self._module = module.eval()

    @classmethod
    def from_tensors(cls, plan: Plan, tensors: Tensors) -> Self:
        """An embedder from the tensors of a released trunk (`update.trunk_tensors`).

        Raises:
            MalformedError: the tensors are not those of the plan's layout, or not finite.
        """
        part_hash(layout_of(plan), "trunk", tensors)
        module = build(plan)
        load(module, tensors)
        return cls(module)

    def embed(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """phi float32[n, embedding width] of features float32[n, d].

        Raises:
            MalformedError: the features are not finite float32[n, d].
        """
        return embed_each(self._module, features)


def _checked(features: npt.NDArray[np.float32], width: int) -> torch.Tensor:
    if features.ndim != 2 or features.shape[1] != width or features.dtype != np.float32:
        raise MalformedError(f"Features are rows of {width} float32 values.")
    if not np.isfinite(features).all():
        raise MalformedError("Features have values that are not finite.")
    # A copy: arrays decoded from a message are read-only, which torch.from_numpy warns of.
    return torch.from_numpy(features.copy())
