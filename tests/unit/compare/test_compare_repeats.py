"""The same seed gives the same bits: every row of the table of methods, with privacy and without, after an interruption
and in another process with another number of threads and another order of hashes.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import compare_cells
import numpy as np
import pytest
from compare_settings import settings

from feddrm.compare import cells
from feddrm.compare.budget import Noise
from feddrm.compare.methods import METHODS
from feddrm.compare.plans import terms_of
from feddrm.compare.settings import Settings
from feddrm.compare.store import Store
from feddrm.contract.architecture import matching, tensors_of
from feddrm.contract.models import Mlp
from feddrm.contract.stages import noise_event

PERCEPTRON = Mlp(kind="mlp", hidden=(4,))
STOPPED_AFTER = 2


def has_tensors_in_the_perceptron(method: str) -> bool:
    try:
        matching(METHODS[method].personal, tensors_of(PERCEPTRON, (8,), 3, 2))
    except ValueError:
        return False
    return True


ON_TABLES = [method for method in METHODS if has_tensors_in_the_perceptron(method)]
ON_IMAGES = [method for method in METHODS if method not in ON_TABLES]


def images(folder: Path) -> dict[str, object]:
    """Three silos' files of images and a network with normalisation layers, for rows about those."""
    generator = np.random.default_rng(0)
    files = {}
    for silo in ("a", "b", "c"):
        labels = generator.integers(0, 3, 20)
        pixels = (np.clip(generator.normal(60 + 60 * labels[:, None, None], 40, (20, 16, 16)), 0, 255)).astype(np.uint8)
        people = np.array([f"{silo}{number}" for number in range(20)])
        path = folder / f"{silo}.npz"
        np.savez(path, image=pixels, person=people, label=np.array([f"l{label}" for label in labels]))
        files[silo] = str(path)
    schema = {
        "patient": "person",
        "image": {"name": "image", "channels": 1, "height": 16, "width": 16, "lower": 0, "upper": 255},
        "target": {"kind": "classes", "column": "label", "values": ["l0", "l1", "l2"]},
    }
    return {
        "data": {"source": "files", "files": {"schema": schema, "silos": files}},
        "model": {"kind": "lenet_gn", "channels": [4, 4], "hidden": 8, "units": 4},
    }


def comparisons(folder: Path) -> list[Settings]:
    common = {
        "epsilons": [math.inf, 3.0],
        "train": {"head_steps": 1, "proximal_mu": 0.1, "sampling_rate": 0.05},
        "tune": {"steps": 2},
    }
    tables = settings(methods=ON_TABLES, **common)
    raw = tables.model_dump(mode="python", by_alias=True)
    return [tables, Settings.model_validate({**raw, "methods": ON_IMAGES, **images(folder)})]


def store(folder: Path, wanted: Settings) -> Store:
    """A store in which the accountant's search, which is most of the work and has tests of its own, was done before."""
    made = Store(folder, wanted)
    for epsilon, method in itertools.product(wanted.epsilons, wanted.chosen):
        if math.isinf(epsilon):
            continue
        row = method.at(epsilon)
        federation = cells.federation_of(wanted, compare_cells.NOWHERE, 0, wanted.seeds[0])
        terms = terms_of(wanted, federation, row, epsilon)
        fit = noise_event(20.0, sensitivity=1 << 17, shares=terms.shares, dimension=terms.words) if row.fits else None
        made.keep_noise(terms, Noise(1.5, fit, epsilon, 2.0 if row.heads else None))
    return made


class InterruptedRunError(Exception):
    """Stands for whatever ends a run."""


def run_with_a_break(wanted: Settings, kept: Store) -> compare_cells.Found:
    """Every training is stopped after a round, and taken up from its file."""
    found: compare_cells.Found = {}
    for job in cells.jobs(wanted):
        done = 0

        def stop(rounds: int) -> None:
            nonlocal done
            done += rounds
            if done > STOPPED_AFTER:
                raise InterruptedRunError

        with pytest.raises(InterruptedRunError):
            cells.run(job, wanted, compare_cells.NOWHERE, kept, stop)
        (left,) = (kept.folder / "states").iterdir()
        state = kept.state(left.stem)
        assert state is not None
        assert state.number == STOPPED_AFTER
        found |= compare_cells.run_cells(job, wanted, kept, lambda _: None)
    return found


def test_every_method_gives_the_same_bits_for_the_same_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = comparisons(tmp_path)
    file = tmp_path / "settings.json"
    file.write_text(json.dumps([each.model_dump_json(by_alias=True) for each in wanted]))
    elsewhere = tmp_path / "elsewhere"
    for number, each in enumerate(wanted):
        store(elsewhere / str(number), each)
    # Neither threads nor hashes may be those of this process.
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "2"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, compare_cells.__file__, str(file), str(elsewhere), "2"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        whole: compare_cells.Found = {}
        for number, each in enumerate(wanted):
            whole |= compare_cells.run_all(each, store(tmp_path / f"whole{number}", each))
        monkeypatch.setattr(cells, "_KEEP_SECONDS", -1.0)
        broken: compare_cells.Found = {}
        for number, each in enumerate(wanted):
            broken |= run_with_a_break(each, store(tmp_path / f"broken{number}", each))
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    there = json.loads((elsewhere / "digests.json").read_text())
    assert {json.loads(found["row"])["method"] for found in whole.values()} == set(METHODS)
    assert len(whole) == 2 * len(METHODS)
    for cell, found in whole.items():
        assert broken[cell] == found, f"{cell}, interrupted"
        assert there[cell] == found, f"{cell}, in another process"
    # What is compared tells networks apart: with noise there are others than without.
    assert len({found["networks"] for found in whole.values()}) > len(METHODS)
