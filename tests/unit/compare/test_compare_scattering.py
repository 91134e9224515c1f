"""examples/scattering: wavelets that do what is said of them, in a file that a comparison takes by its hash."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from feddrm.compare.settings import load
from feddrm.contract.models import Frozen

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "examples" / "scattering" / "scattering.py"
SETTINGS = """
name = "small"
methods = ["feddrm", "fedavg"]
epsilons = [inf]
extractor = "made/scattering.pt2"
[data]
source = "files"
[data.files]
silos = { a = "a.npz", b = "b.npz", c = "c.npz" }
[data.files.schema]
patient = "person"
image = { name = "image", channels = 3, height = 32, width = 32, lower = 0, upper = 255 }
target = { kind = "classes", column = "label", values = ["across", "along"] }
[model]
kind = "frozen"
sha256 = "SHA256"
form = "export"
features = 1840
hidden = [8]
[train]
rounds = 8
local_steps = 4
sampling_rate = 1.0
learning_rate = 0.1
[fit]
sums = 10
average_from = 6
"""


@pytest.fixture(scope="module")
def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scattering", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def photographs(count: int, smoothness: int = 9, side: int = 32) -> torch.Tensor:
    """Float32[count, 3, side, side] in [-1, 1]: smooth noise."""
    wide = side + smoothness - 1
    noise = torch.rand(count, 3, wide, wide, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.avg_pool2d(noise, smoothness, stride=1)
    return (smooth - smooth.amin()) / (smooth.amax() - smooth.amin()) * 2 - 1


def parts(made: ModuleType, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Averages [n, 3, 4, 4], first order [n, 3, scale, orientation, 4, 4], second order [n, orientation, the same]."""
    features = made.Scattering()(images)
    assert features.shape == (len(images), 1840)
    averages, first, second = features.split([48, 768, 1024], dim=1)
    return averages.reshape(-1, 3, 4, 4), first.reshape(-1, 3, 2, 8, 4, 4), second.reshape(-1, 8, 8, 4, 4)


def test_an_even_image_has_averages_and_nothing_else(made: ModuleType) -> None:
    images = torch.tensor([0.25, -0.5, 0.0]).reshape(1, 3, 1, 1).expand(1, 3, 32, 32)
    averages, first, second = parts(made, images)
    expected = torch.tensor([-0.25 / 3, 0.25, 0.625]).reshape(1, 3, 1, 1).expand(1, 3, 4, 4)
    assert torch.allclose(averages, expected, atol=1e-5)
    assert first.abs().max() < 1e-2
    assert second.abs().max() < 1e-2


def test_an_image_on_its_side_has_the_same_features_on_their_side(made: ModuleType) -> None:
    """A quarter turn takes each of eight orientations of half a turn to the one four further."""
    images = photographs(4)
    turned = parts(made, images.rot90(1, (-2, -1)))
    averages, first, second = (part.rot90(1, (-2, -1)) for part in parts(made, images))
    assert torch.allclose(turned[0], averages, atol=1e-5)
    assert torch.allclose(turned[1], first.roll(4, 3), atol=1e-3)
    assert torch.allclose(turned[2], second.roll((4, 4), (1, 2)), atol=1e-3)
    assert not torch.allclose(turned[1], first, atol=0.1)


def test_stripes_are_seen_by_the_wavelets_across_them(made: ModuleType) -> None:
    stripes = torch.cos(0.75 * np.pi * torch.arange(32.0)).reshape(1, 1, 1, 32).expand(1, 3, 32, 32)
    _, first, _ = parts(made, stripes)
    seen = first[0, 0, 0].mean((-2, -1))
    assert seen.argmax() == 0
    assert seen[0] > 1.5 > 0 > seen[2:7].max()


def test_a_paler_image_has_the_same_shapes_and_weaker_colours(made: ModuleType) -> None:
    images = photographs(4)
    grey = images.mean(1, keepdim=True)
    full, pale = parts(made, images), parts(made, grey + 0.5 * (images - grey))
    assert torch.allclose(pale[1][:, 0], full[1][:, 0], atol=1e-3)
    assert torch.allclose(pale[1][:, 1:], 0.5 * full[1][:, 1:], atol=1e-3)
    assert torch.allclose(pale[2], full[2], atol=1e-3)


def test_a_step_aside_changes_features_less_than_pixels(made: ModuleType) -> None:
    whole = photographs(8, smoothness=3, side=34)
    images, aside = whole[..., :32, :32], whole[..., 2:, 2:]
    first, other = parts(made, images)[1], parts(made, aside)[1]
    moved, pixels = (first - other).norm() / first.norm(), (images - aside).norm() / images.norm()
    assert moved < 0.65 * pixels


def test_a_comparison_takes_the_file_that_the_script_wrote(tmp_path: Path) -> None:
    said = subprocess.run([sys.executable, SCRIPT, tmp_path / "made"], check=True, capture_output=True, text=True)
    written = (tmp_path / "made" / "scattering.pt2").read_bytes()
    digest = hashlib.sha256(written).digest()
    assert digest.hex() in said.stdout
    model = load(str(tmp_path / "made" / "cifar10.toml")).model
    assert isinstance(model, Frozen)
    assert model.sha256 == digest
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.write_text(SCRIPT.read_text())
    (tmp_path / "cifar10.toml").write_text("")
    subprocess.run([sys.executable, elsewhere, tmp_path / "again"], check=True, capture_output=True)
    assert (tmp_path / "again" / "scattering.pt2").read_bytes() == written

    generator = np.random.default_rng(0)
    for silo in ("a", "b", "c"):
        labels = generator.integers(0, 2, 30)
        waves = 128 + 60 * np.cos(2 * np.arange(32) + generator.uniform(0, 6, (30, 1)))
        along = np.repeat(waves[:, None, :], 32, axis=1)
        images = np.where(labels[:, None, None] == 0, along, along.swapaxes(1, 2))
        pixels = np.clip(images[:, None] + generator.normal(0, 40, (30, 3, 32, 32)), 0, 255).astype(np.uint8)
        people = np.array([f"{silo}{number}" for number in range(30)])
        np.savez(tmp_path / silo, image=pixels, person=people, label=np.array(["across", "along"])[labels])
    (tmp_path / "mine.toml").write_text(SETTINGS.replace("SHA256", digest.hex()))
    command = [sys.executable, "-m", "feddrm.commands", "compare", "mine.toml", "--format", "json", "--processes", "1"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    rows = json.loads(done.stdout)["rows"]
    assert {row["method"]: row["system"] > 0.9 for row in rows} == {"feddrm": True, "fedavg": True}
