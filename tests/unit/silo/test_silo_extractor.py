"""A hospital's agent with a frozen extractor: from its file, named in local/data.toml, to a round of training."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from silo_harness import Trial

from feddrm.contract.errors import InputError
from feddrm.contract.home import init_member
from feddrm.contract.identity import Role
from feddrm.contract.plan import Plan
from feddrm.features import Dataset
from feddrm.method.extractor import extracted
from feddrm.method.layout import initial_model, initial_personal, layout_of
from silo.data import with_features
from silo.effects import DataLoaded, DataRefused, LoadData, Train, Trained, TrainingFailed
from silo.home import Home
from silo.workshop import Workshop

torch = pytest.importorskip("torch", reason="the silo extra is not installed")

ROWS = "id,a,y\n" + "".join(f"p{i // 2},{i / 40:.3f},{i % 3}\n" for i in range(40))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    init_member(tmp_path / "alpha", "alpha", Role.SILO)
    home = Home(tmp_path / "alpha")
    settings = 'records = "records.csv"\npatient = "id"\npublic_size = 20\nextractor = "encoder.pt"\n'
    (home.local / "data.toml").write_text(settings)
    (home.local / "records.csv").write_text(ROWS)
    torch.manual_seed(0)
    width = Trial.make().plan.schema_.width
    torch.jit.script(torch.nn.Sequential(torch.nn.Linear(width, 9), torch.nn.Tanh()).eval()).save(
        str(home.local / "encoder.pt")
    )
    return home


def plan_of(home: Home) -> Plan:
    document = Trial.make().plan.model_dump(mode="json", by_alias=True)
    digest = hashlib.sha256((home.local / "encoder.pt").read_bytes()).hexdigest()
    document["model"] = {"kind": "frozen", "sha256": digest, "form": "torchscript", "features": 9, "hidden": [4]}
    return Plan.model_validate(document)


def test_training_reads_what_the_extractor_makes_of_the_records(home: Home) -> None:
    plan, seen = plan_of(home), list[bytes]()
    shop = Workshop(home, "alpha", 1, os.urandom, lambda digest, nonce: seen.append(digest) or bytes(32), bytes(32))
    assert isinstance(shop.read(LoadData(bytes(32), plan)), DataLoaded)
    layout = layout_of(plan)
    vectors = initial_model(layout, bytes(32)), initial_personal(layout, bytes(32))
    trained = shop.round(Train(bytes(32), plan, 1, 20, *vectors), threading.Event())
    assert isinstance(trained, Trained)
    assert trained.update.shape == (layout.shared_size,)
    # What the ledger commits to is the records, whatever is made of them.
    other = Workshop(home, "alpha", 1, os.urandom, lambda digest, nonce: seen.append(digest) or bytes(32), bytes(32))
    other.read(LoadData(bytes(32), Trial.make().plan))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("what", ["another", "none", "unnamed"])
def test_without_the_plan_s_extractor_nothing_is_trained(home: Home, what: str) -> None:
    plan = plan_of(home)
    if what == "another":
        (home.local / "encoder.pt").write_bytes(b"another")
    elif what == "none":
        (home.local / "encoder.pt").unlink()
    else:
        text = (home.local / "data.toml").read_text().replace('extractor = "encoder.pt"\n', "")
        (home.local / "data.toml").write_text(text)
    shop = Workshop(home, "alpha", 1, os.urandom, lambda digest, nonce: bytes(32), bytes(32))
    refused = shop.read(LoadData(bytes(32), plan))
    assert isinstance(refused, DataRefused)
    with pytest.raises(InputError):
        with_features(home, plan, Dataset(np.zeros((1, plan.schema_.width), np.float32), None, [b"p"]))


def test_a_file_swapped_between_rounds_is_not_trained_on(home: Home) -> None:
    """What was extracted from the plan's file stays in memory; a process that starts anew refuses the other one."""
    plan = plan_of(home)
    shop = Workshop(home, "alpha", 1, os.urandom, lambda digest, nonce: bytes(32), bytes(32))
    shop.read(LoadData(bytes(32), plan))
    layout = layout_of(plan)
    vectors = initial_model(layout, bytes(32)), initial_personal(layout, bytes(32))
    torch.jit.script(torch.nn.Flatten().eval()).save(str(home.local / "encoder.pt"))
    for number in (1, 2):
        assert isinstance(shop.round(Train(bytes(32), plan, number, 20, *vectors), threading.Event()), Trained)
    again = Workshop(home, "alpha", 1, os.urandom, lambda digest, nonce: bytes(32), bytes(32))
    refused = again.read(LoadData(bytes(32), plan))
    assert isinstance(refused, DataRefused)
    assert f"{home.local / 'encoder.pt'} is not the plan's extractor" in refused.detail
    assert "extractor in local/data.toml" in refused.detail
    assert isinstance(again.round(Train(bytes(32), plan, 3, 20, *vectors), threading.Event()), TrainingFailed)


def test_a_query_carries_what_was_extracted_and_meets_the_same_model(home: Home) -> None:
    """float32 features in [-1, 1], extracted by the querier, are what the hospital would have extracted itself."""
    plan = plan_of(home)
    records = np.random.default_rng(0).uniform(-1, 1, (3, plan.schema_.width)).astype(np.float32)
    here = with_features(home, plan, Dataset(records, None, [b"p"] * 3)).features
    there = extracted(plan, home.local / "encoder.pt", records, "--extractor FILE")
    assert here.dtype == np.float32
    assert np.array_equal(here, there)
