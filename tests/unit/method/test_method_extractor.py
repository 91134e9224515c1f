"""Frozen extractors: a record's features are its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kinds import MakePlan

torch = pytest.importorskip("torch", reason="the silo extra is not installed")

from extractors import NAMED, Encoder, encoder, images, plan_for, scripted  # noqa: E402
from torch import nn  # noqa: E402

from feddrm.contract.errors import InputError  # noqa: E402
from feddrm.method.coarse import Grid  # noqa: E402
from feddrm.method.extractor import Extractor, extracted  # noqa: E402
from feddrm.method.layout import initial_model, initial_personal, layout_of  # noqa: E402
from feddrm.method.model import Embedder, Predictor  # noqa: E402
from feddrm.method.update import trunk_tensors  # noqa: E402


class Counting(nn.Module):
    """Keeps a count of what it saw, in no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return images.flatten(1)[:, :36] * (1 + self.seen) + self.seen * torch.arange(36)


class Failing(nn.Module):
    """Fails on bright records, and is not finite on dark ones."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if float(images.mean()) > 0.5:
            raise RuntimeError("bright")
        return torch.log(images.flatten(1)[:, :36] + 0.9)


@pytest.mark.parametrize("form", ["torchscript", "export"])
def test_a_record_s_features_are_its_own_and_in_range(make_kind: MakePlan, tmp_path: Path, form: str) -> None:
    file, module = tmp_path / "encoder.pt2", encoder()
    if form == "torchscript":
        scripted(file, module)
    else:
        torch.export.save(torch.export.export(module, (torch.zeros(1, 1, 16, 16),)), file)
    plan = plan_for(make_kind, file.read_bytes(), form)
    assert plan.width == 36
    records = images()
    features = extracted(plan, file, records, NAMED)
    assert features.shape == (12, 36)
    assert features.dtype == np.float32
    assert np.abs(features).max() <= 1
    assert (extracted(plan, file, records[5:6], NAMED) == features[5:6]).all()
    with torch.no_grad():
        raw = module(torch.from_numpy(records[3:4].reshape(1, 1, 16, 16)))[0].double().numpy()
    assert np.allclose(features[3], ((raw - raw.mean()) / np.sqrt(raw.var() + 1e-5)).clip(-4, 4) / 4, atol=1e-5)


def test_everything_behind_the_extractor_is_a_network_of_its_features(make_kind: MakePlan, tmp_path: Path) -> None:
    plan = plan_for(make_kind, scripted(tmp_path / "encoder.pt", encoder()))
    layout = layout_of(plan)
    model, personal = initial_model(layout, bytes(32)), initial_personal(layout, bytes(32))
    features = extracted(plan, tmp_path / "encoder.pt", images(), NAMED)
    assert Predictor(plan, model, personal).predict(features).probabilities.shape == (12, 2)
    trunk = trunk_tensors(layout, model)
    phi = Embedder.from_tensors(plan, trunk).embed(features)
    assert (phi <= Grid.of(plan, trunk).bounds + 1e-6).all()
    other = plan_for(make_kind, b"another file")
    assert layout_of(other).tensors == layout.tensors
    assert layout_of(other).fingerprint() != layout.fingerprint()


@pytest.mark.parametrize(
    "module", [Encoder().train(), Counting(), nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(256, 36)).train()]
)
def test_an_extractor_that_remembers_or_rolls_dice_is_refused(
    make_kind: MakePlan, tmp_path: Path, module: nn.Module
) -> None:
    """An exported program stays as it was exported, and a count in no buffer stays a count."""
    file = tmp_path / "encoder.pt"
    if isinstance(module, Counting):
        plan = plan_for(make_kind, scripted(file, module))
    else:
        torch.export.save(torch.export.export(module, (torch.zeros(1, 1, 16, 16),)), file)
        plan = plan_for(make_kind, file.read_bytes(), "export")
    with pytest.raises(InputError, match="keeps something of the records"):
        extracted(plan, file, images(), NAMED)


def test_a_record_on_which_it_fails_is_zeros_and_no_error(make_kind: MakePlan, tmp_path: Path) -> None:
    file = tmp_path / "failing.pt"
    plan = plan_for(make_kind, scripted(file, Failing()))
    records = np.abs(images(4)) * 0.4
    records[1], records[2] = 0.95, -1.0
    features = extracted(plan, file, records, NAMED)
    assert not features[1:3].any()
    assert np.abs(features[[0, 3]]).max() > 0.1


class Looking(nn.Module):
    """Looks a pixel up in a table that has no row for it: an exported one raises IndexError."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 36)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.table((images.flatten(1)[:, 0].clamp(min=0) * 8).long()) + images.flatten(1)[:, :36]


def test_an_exported_program_may_raise_whatever_it_likes(make_kind: MakePlan, tmp_path: Path) -> None:
    """Else one patient would decide whether a hospital declines."""
    file = tmp_path / "looking.pt2"
    torch.manual_seed(0)
    torch.export.save(torch.export.export(Looking(), (torch.zeros(1, 1, 16, 16),)), file)
    plan = plan_for(make_kind, file.read_bytes(), "export")
    records = images(4)
    records[:, 0] = [0.0, 0.9, 0.3, 0.6]
    features = extracted(plan, file, records, NAMED)
    assert not features[[1, 3]].any()
    assert features[[0, 2]].any(axis=1).all()


class Marking(nn.Module):
    """Writes a buffer once it sees a certain pixel: made so that one patient changes all who come after."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mark", torch.zeros(36))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1)
        self.mark.copy_(torch.where(pixels[0, 0] > 0.99, pixels[0, :36], self.mark))
        return pixels[:, :36] + 5 * self.mark


@pytest.mark.parametrize("form", ["torchscript", "export"])
def test_what_one_record_changes_reaches_no_other_and_refuses_nobody(
    make_kind: MakePlan, tmp_path: Path, form: str
) -> None:
    file = tmp_path / "marking"
    if form == "torchscript":
        scripted(file, Marking())
    else:
        torch.export.save(torch.export.export(Marking(), (torch.zeros(1, 1, 16, 16),)), file)
    plan = plan_for(make_kind, file.read_bytes(), form)
    records = images(6)
    without = extracted(plan, file, records, NAMED)
    records[2, 0] = 1.0
    features = extracted(plan, file, records, NAMED)
    assert not np.array_equal(features[2], without[2])
    assert np.array_equal(np.delete(features, 2, axis=0), np.delete(without, 2, axis=0))


class Hoarding(nn.Module):
    """Keeps one record in a list, and shows it to all others."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.zeros(36)]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1)[:, :36]
        if bool(pixels[0, 0] > 0.99):
            self.kept.append(pixels[0])
        return pixels + self.kept[-1]


class Sorting(nn.Module):
    """Fills a list of its own, which ends with the record."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        for row in range(3):
            parts.append(images.flatten(1)[:, 12 * row : 12 * row + 12])
        return torch.cat(parts, dim=1)


@pytest.mark.parametrize("module", [Counting(), Hoarding()])
def test_a_refusal_comes_before_any_record(make_kind: MakePlan, tmp_path: Path, module: nn.Module) -> None:
    plan = plan_for(make_kind, scripted(tmp_path / "counting.pt", module))
    with pytest.raises(InputError, match="keeps something of the records"):
        Extractor(plan, tmp_path / "counting.pt", NAMED)
    Extractor(plan_for(make_kind, scripted(tmp_path / "sorting.pt", Sorting())), tmp_path / "sorting.pt", NAMED)
