"""Public data sets that are not there: what a user of the package is told before anything runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from feddrm.compare import data, public, tables
from feddrm.compare.settings import Data
from feddrm.contract.errors import ExitCode, InputError

ROOT = Path(__file__).resolve().parents[3]
SETS = {
    "mnist": Data(source="mnist", split="fixed"),
    "cifar10": Data(source="cifar10", split="fixed"),
    "heart": Data(source="heart"),
}


def load(settings: Data, folder: Path) -> None:
    if settings.source == "heart":
        tables.natural(settings, folder, 0)
    else:
        data.images(settings, 8, folder)


def compare(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`feddrm compare mnist-scale` in an empty directory."""
    command = [sys.executable, "-m", "feddrm.commands", "compare", "mnist-scale", "--processes", "1", *options]
    kept = {name: value for name, value in os.environ.items() if name != "FEDDRM_DATA"}
    return subprocess.run(
        command, cwd=folder, env={**kept, **environment}, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("source", SETS)
def test_a_missing_folder_is_named_with_all_that_belongs_into_it_and_where_that_is_from(
    tmp_path: Path, source: str
) -> None:
    with pytest.raises(InputError) as refused:
        load(SETS[source], tmp_path / "nowhere")
    said = str(refused.value)
    assert said.startswith(f"There is no folder {tmp_path / 'nowhere'}")
    assert "--data" in said
    assert "FEDDRM_DATA" in said
    assert all(file.name in said and file.what in said for file in public.files(SETS[source]))


@pytest.mark.parametrize("source", SETS)
def test_files_that_are_missing_are_named_and_no_others(tmp_path: Path, source: str) -> None:
    wanted = [file.name for file in public.files(SETS[source])]
    assert len(wanted) >= 2
    for name in wanted[1:]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError) as refused:
        load(SETS[source], tmp_path)
    assert str(refused.value).startswith(f"{tmp_path} lacks {wanted[0]}.")


def test_a_split_that_is_drawn_needs_no_file_of_it() -> None:
    drawn = Data(source="mnist", split="dirichlet", silos=(8,))
    assert [file.name for file in public.files(drawn)] == ["mnist/mnist.npz"]
    assert public.files(Data(source="rand")) == ()


def test_what_can_be_drawn_here_needs_the_arrays_that_are_said(tmp_path: Path) -> None:
    """MNIST's form, as the sentence about it has it, is enough."""
    (file,) = public.files(Data(source="mnist", split="dirichlet", silos=(3,)))
    names = re.findall(r"[xy]_\w+", file.what)
    assert len(names) == 4
    (tmp_path / file.name).parent.mkdir()
    images, labels = np.zeros((300, 28, 28), np.uint8), np.arange(300, dtype=np.uint8) % 10
    np.savez(tmp_path / file.name, **{name: images if name.startswith("x") else labels for name in names})
    made = data.images(Data(source="mnist", split="dirichlet", silos=(3,), alpha=10.0), 3, tmp_path)
    assert sum(len(silo) for silo in made.silos) + len(made.targets) == 600


def test_the_command_says_it_and_takes_the_folder_from_the_environment(tmp_path: Path) -> None:
    said = compare(tmp_path, FEDDRM_DATA=str(tmp_path / "sets"))
    assert said.returncode == ExitCode.INPUT
    flat = " ".join(said.stderr.split())
    assert f"There is no folder {tmp_path / 'sets'}" in flat
    assert "mnist/mnist.npz" in flat
    # An option wins.
    said = compare(tmp_path, "--data", str(tmp_path / "others"), FEDDRM_DATA=str(tmp_path / "sets"))
    assert f"There is no folder {tmp_path / 'others'}" in " ".join(said.stderr.split())


def test_the_document_has_every_file() -> None:
    text = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    for settings in SETS.values():
        for file in public.files(settings):
            assert f"`{file.name}`" in text
