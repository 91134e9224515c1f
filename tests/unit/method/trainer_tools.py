"""What the tests of the private trainer share: made-up data, a recorder in the place of the noise, one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch", reason="the silo extra is not installed")
pytest.importorskip("opacus", reason="the silo extra is not installed")

from torch import nn  # noqa: E402

from feddrm.contract.plan import Plan  # noqa: E402
from feddrm.features import Dataset  # noqa: E402
from feddrm.method.dpsgd import DpSgd  # noqa: E402
from feddrm.method.layout import initial_model, initial_personal, layout_of  # noqa: E402
from feddrm.method.model import build, load_vectors  # noqa: E402
from feddrm.method.trainer import Trainer  # noqa: E402
from feddrm.method.update import from_float, to_float  # noqa: E402

MakePlan = Callable[..., Plan]
Entropy = Callable[[int], bytes]
MakeEntropy = Callable[[bytes], Entropy]
Floats = npt.NDArray[np.float64]


class Recorder:
    """In the place of the noise source: adds nothing and keeps what it was given, the clipped sums."""

    def __init__(self) -> None:
        self.sums: list[Floats] = []
        self.scales: list[tuple[float, float]] = []

    def add(self, values: npt.ArrayLike, std: float, grid: float) -> Floats:
        self.sums.append(np.array(values, dtype=np.float64))
        self.scales.append((std, grid))
        return np.array(values, dtype=np.float64)


class Going:
    """A stop signal that is set after `checks` checks."""

    def __init__(self, checks: int = 10**9) -> None:
        self.left = checks

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def dataset(seed: int, patients: int = 12, records: int = 3, width: int = 4, scale: float = 1.0) -> Dataset:
    rng = np.random.default_rng(seed)
    count = patients * records
    features = (scale * rng.standard_normal((count, width))).astype(np.float32)
    ids = [b"patient-%d" % (i % patients) for i in range(count)]
    return Dataset(features, rng.integers(0, 2, count), ids)


def without(data: Dataset, patient: bytes) -> Dataset:
    keep = np.array([p != patient for p in data.patients])
    assert data.targets is not None
    return Dataset(data.features[keep], data.targets[keep], [p for p in data.patients if p != patient])


def weights(plan: Plan, scale: float = 1.0) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    layout = layout_of(plan)
    model, personal = initial_model(layout, bytes(32)), initial_personal(layout, bytes(32))
    return from_float(to_float(model) * scale), from_float(to_float(personal) * scale)


def clipped_sum(plan: Plan, data: Dataset, recorder: Recorder, entropy: Entropy, scale: float = 1.0) -> Floats:
    """The sum that the first step of a real round hands to the noise."""
    recorder.sums.clear()
    Trainer(plan, layout_of(plan), data, 1, 20, entropy).train_round(*weights(plan, scale), Going())
    assert len(recorder.sums) == plan.training.local_steps
    return recorder.sums[0]


def engine(plan: Plan, noise: Recorder, divisor: float = 1.0) -> tuple[DpSgd, nn.Module]:
    module = build(plan)
    load_vectors(module, layout_of(plan), *weights(plan))
    return DpSgd(module, plan.training, divisor=divisor, noise=noise), module


def batch(data: Dataset, rows: slice = slice(None)) -> tuple[Any, Any]:
    assert data.targets is not None
    return torch.from_numpy(data.features[rows]), torch.from_numpy(data.targets[rows])
