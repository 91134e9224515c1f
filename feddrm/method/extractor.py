"""A public feature extractor: a file of TorchScript or torch.export that a silo or querier was given beside the plan.

Loading such a file executes a program: it is loaded only if its bytes have the hash that the operator signed in the
plan, and only where the hospital's or querier's own staff put it. Nobody trains it, so that it costs no privacy; but it
must not carry anything from one record to another, or removing one patient would change others' features. Whatever
keeps state is refused on made-up records, before any is read, so that a refusal says nothing of patients; every record
is extracted by itself, and what it changed is put back.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from feddrm.contract.errors import InputError
from feddrm.contract.models import Frozen
from feddrm.contract.plan import Plan
from feddrm.method.model import one_thread

_DEVIATIONS: Final = 4.0
_TINY: Final = 1e-5
# What changes a list or dictionary in TorchScript.
_CHANGES: Final = ("append", "extend", "insert", "pop", "clear", "remove", "reverse", "sort", "_set_item", "Delete")

Floats = npt.NDArray[np.float32]


class Extractor:
    """The extractor of a plan, verified and loaded.

    Args:
        plan: of a "frozen" model.
        path: of the file.
        named: what names the file, for a person who must correct it ("extractor in local/data.toml").

    Raises:
        InputError: it cannot be read, is another file than the plan's, or does not do what the plan says.
    """

    def __init__(self, plan: Plan, path: Path, named: str) -> None:
        if not isinstance(plan.model, Frozen):
            raise ValueError("the plan has no extractor")
        self._path = path
        self._shape = plan.schema_.shape
        self._features = plan.model.features
        # The bytes that were hashed are those that are loaded, whatever becomes of the file meanwhile.
        self._module = _load(_checked(path, plan.model.sha256, named), plan.model.form, path)
        if plan.model.form == "torchscript" and any(
            getattr(part, "training", False) for part in self._module.modules()
        ):
            raise self._refusal("it was saved in training mode", "save it again after .eval()")
        self._probe = torch.linspace(-1.0, 1.0, math.prod(self._shape)).reshape(1, *self._shape)
        try:
            with torch.no_grad(), one_thread():
                shape = tuple(self._run(self._probe).shape)
        except Exception as error:
            wanted = f"(1, {', '.join(map(str, self._shape))})"
            raise self._refusal(
                f"it does not take a record of shape {wanted}", "make one that takes what the plan's schema gives"
            ) from error
        if shape != (1, self._features):
            raise self._refusal(
                f"it gives {shape} for one record, not (1, {self._features})", "correct model.features in the plan"
            )
        self._refuse_memory()
        self._clean = [(tensor, tensor.detach().clone()) for _, tensor in self._tensors()]

    def apply(self, records: Floats) -> Floats:
        """Features float32[n, features] in [-1, 1] of records float32[n, d].

        A record on which the extractor fails, whatever it raises, or whose output is not finite, has zeros, and what a
        record changed of the extractor's tensors is put back before the next: nothing is refused here, since whether
        something happens is a fact about a patient.
        """
        result = np.zeros((len(records), self._features), dtype=np.float32)
        place = torch.zeros((1, *self._shape))
        with torch.no_grad(), one_thread():
            for index, record in enumerate(records):
                place.copy_(torch.from_numpy(record.reshape(1, *self._shape)))
                result[index] = self._output(place)
                for tensor, clean in self._clean:
                    if tensor.shape != clean.shape or not torch.equal(tensor, clean):
                        tensor.data = clean.clone()
        return result

    def _refuse_memory(self) -> None:
        """Refuse, on made-up records, a program that changes its state or answers otherwise when it is asked again; and
        one whose text assigns attributes, which may be no tensors."""
        assigns = _assigns(getattr(self._module, "inlined_graph", None))
        state = self._state()
        with torch.no_grad(), one_thread():
            first = self._output(self._probe)
            for level in (0.0, -1.0, 0.5):
                self._output(torch.full((1, *self._shape), level))
            again = self._output(self._probe)
        if assigns or self._state() != state or not np.array_equal(first, again):
            raise self._refusal(
                "it keeps something of the records that it saw, so that they would touch each other",
                "take one in evaluation mode, without state and without random numbers",
            )

    def _output(self, record: torch.Tensor) -> Floats:
        """float32[features] of one record, normalised."""
        try:
            values = self._run(record).detach().to(torch.float64).reshape(-1).numpy()
        except Exception:  # noqa: BLE001 - the boundary: which record a program of somebody else's fails on tells nobody
            return np.zeros(self._features, dtype=np.float32)
        if values.shape != (self._features,) or not np.isfinite(values).all():
            return np.zeros(self._features, dtype=np.float32)
        scaled = (values - values.mean()) / np.sqrt(values.var() + _TINY)
        cut: Floats = (np.clip(scaled, -_DEVIATIONS, _DEVIATIONS) / _DEVIATIONS).astype(np.float32)
        return cut

    def _run(self, record: torch.Tensor) -> torch.Tensor:
        output = self._module(record)
        if not isinstance(output, torch.Tensor):
            raise TypeError("an extractor gives one tensor")
        return output

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        return sorted([*self._module.named_parameters(), *self._module.named_buffers()], key=lambda named: named[0])

    def _state(self) -> bytes:
        """SHA-256 of all parameters and buffers."""
        digest = hashlib.sha256()
        for name, tensor in self._tensors():
            digest.update(name.encode() + repr((tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.digest()

    def _refusal(self, why: str, what: str) -> InputError:
        return InputError(
            f"{self._path} is the plan's extractor, but {why}; nothing was done with a record.",
            remedy=f"Tell the operator: {what}, and sign a plan with its model.sha256.",
        )


def extracted(plan: Plan, path: Path | None, records: Floats, named: str) -> Floats:
    """What the network is given of encoded records float32[n, d]: themselves, unless the plan has an extractor.

    Args:
        path: of its file; None where there is none.
        named: as of Extractor.

    Raises:
        InputError: the plan has an extractor, and the file is missing, another one or unusable.
    """
    if not isinstance(plan.model, Frozen):
        return records
    if path is None:
        raise InputError(
            f"The plan's model needs a feature extractor, the file with SHA-256 {plan.model.sha256.hex()}.",
            remedy=f"Take it from whom you trust and name it by {named}.",
        )
    return Extractor(plan, path, named).apply(records)


def _assigns(graph: Any) -> bool:
    """Whether a TorchScript (None: another form, whose state is all tensors) sets or changes attributes."""
    if graph is None:
        return False
    changes = [node for name in _CHANGES for node in graph.findAllNodes(f"aten::{name}")]
    kept = any(next(node.inputs()).node().kind() == "prim::GetAttr" for node in changes)
    return kept or bool(graph.findAllNodes("prim::SetAttr"))


def _checked(path: Path, expected: bytes, named: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}.",
            remedy=f"Put the file with SHA-256 {expected.hex()} there, or correct {named}.",
        ) from error
    found = hashlib.sha256(data).digest()
    if found != expected:
        raise InputError(
            f"{path} is not the plan's extractor: its SHA-256 is {found.hex()}, the plan's {expected.hex()}.",
            remedy=f"Take that one from whom you trust and name it by {named}; nothing of this one was loaded.",
        )
    return data


def _load(data: bytes, form: str, path: Path) -> Any:
    loaders: dict[str, Callable[[io.BytesIO], Any]] = {
        "torchscript": lambda file: torch.jit.load(file, map_location="cpu"),  # type: ignore[no-untyped-call]
        # An exported program has no modes: it is as it was exported.
        "export": lambda file: torch.export.load(file).module(),
    }
    try:
        with _quiet("torch.export"):
            return loaders[form](io.BytesIO(data))
    except Exception as error:
        # The boundary: what torch raises on files of other forms is documented nowhere.
        raise InputError(
            f"{path} is the plan's extractor, but no file of the form {form!r}.",
            remedy="Tell the operator: correct model.form in the plan, or save the extractor in that form.",
        ) from error


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Without a logger's tracebacks about what is told in words."""
    log = logging.getLogger(name)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
