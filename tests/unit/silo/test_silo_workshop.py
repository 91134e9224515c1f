"""Records in, one round of real DP-SGD out, in the silo's own worker."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from silo_harness import NAMES, Trial

from feddrm.contract.home import init_member
from feddrm.contract.identity import Role
from feddrm.method.layout import initial_model, initial_personal, layout_of
from silo.effects import DataLoaded, DataRefused, LoadData, Train, Trained, TrainingFailed
from silo.home import Home
from silo.workshop import Workshop

ROWS = "id,a,y\n" + "".join(f"p{i // 2},{i / 40:.3f},{i % 3}\n" for i in range(40))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    init_member(tmp_path / "alpha", "alpha", Role.SILO)
    home = Home(tmp_path / "alpha")
    (home.local / "data.toml").write_text('records = "records.csv"\npatient = "id"\npublic_size = 20\n')
    (home.local / "records.csv").write_text(ROWS)
    return home


def workshop(home: Home, seen: list[bytes]) -> Workshop:
    def commit(digest: bytes, nonce: bytes) -> bytes:
        assert len(nonce) == 32
        seen.append(digest)
        return bytes(32)

    return Workshop(home, "alpha", 1, os.urandom, commit, bytes(32))


def train_effect(trial: Trial, number: int = 1) -> Train:
    layout = layout_of(trial.plan)
    return Train(
        trial.plan_hash,
        trial.plan,
        number,
        20,
        initial_model(layout, trial.plan_hash),
        initial_personal(layout, trial.plan_hash),
    )


def test_a_round_is_trained_on_the_hospitals_records(home: Home) -> None:
    trial, seen = Trial.make(), list[bytes]()
    shop = workshop(home, seen)
    loaded = shop.read(LoadData(trial.plan_hash, trial.plan))
    assert isinstance(loaded, DataLoaded)
    assert loaded == DataLoaded(trial.plan_hash, bytes(32), loaded.nonce, "id", 20)
    first = shop.round(train_effect(trial), threading.Event())
    second = shop.round(train_effect(trial, 2), threading.Event())
    assert isinstance(first, Trained)
    assert isinstance(second, Trained)
    assert first.update.shape == (layout_of(trial.plan).shared_size,)
    assert np.isfinite(first.update).all()
    # Noise is fresh: from the same model no two rounds are alike.
    assert not np.array_equal(first.update, second.update)
    assert not np.array_equal(first.personal, train_effect(trial).personal)


def test_the_commitment_covers_every_cell_and_id(home: Home) -> None:
    trial, seen = Trial.make(), list[bytes]()
    shop = workshop(home, seen)
    for text in (ROWS, ROWS.replace("p3,", "p99,"), ROWS.replace("0.025,1", "0.025,0"), ROWS.replace("0.025", "0.026")):
        (home.local / "records.csv").write_text(text)
        assert isinstance(shop.read(LoadData(trial.plan_hash, trial.plan)), DataLoaded)
    assert len(set(seen)) == 4


@pytest.mark.parametrize("text", ["id,a\np1,0.5\n", "", "a,y\n0.5,1\n"])
def test_a_table_without_a_column_is_refused_with_the_detail(home: Home, text: str) -> None:
    trial = Trial.make()
    (home.local / "records.csv").write_text(text)
    refused = workshop(home, []).read(LoadData(trial.plan_hash, trial.plan))
    assert isinstance(refused, DataRefused)
    assert "records.csv" in refused.detail


@pytest.mark.parametrize("row", [",0.5,1", "p1,secret,1", "p1,nan,1", "p1,0.5,secret", "p1,0.5", '"p1,0.5,1'])
def test_no_record_decides_whether_a_plan_is_accepted(home: Home, row: str, caplog: pytest.LogCaptureFixture) -> None:
    """What does not fit is counted in the hospital's own log, and its content is not even there."""
    trial = Trial.make()
    (home.local / "records.csv").write_text(ROWS + row + "\n")
    assert isinstance(workshop(home, []).read(LoadData(trial.plan_hash, trial.plan)), DataLoaded)
    assert "do not fit the plan" in caplog.text
    assert "secret" not in caplog.text


def test_an_unexpected_error_is_a_refusal_and_not_the_end(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    trial = Trial.make()

    def broken(_: bytes, __: bytes) -> bytes:
        raise ZeroDivisionError

    shop = Workshop(home, "alpha", 1, os.urandom, broken, bytes(32))
    refused = shop.read(LoadData(trial.plan_hash, trial.plan))
    assert isinstance(refused, DataRefused)
    assert "ZeroDivisionError" in caplog.text
    shop = workshop(home, [])
    shop.read(LoadData(trial.plan_hash, trial.plan))
    effect = train_effect(trial)
    failed = shop.round(replace(effect, model=effect.model[:-1]), threading.Event())
    assert isinstance(failed, TrainingFailed)
    assert "Traceback" in caplog.text
    # The next round works.
    assert isinstance(shop.round(effect, threading.Event()), Trained)


def test_a_stop_ends_a_round_without_a_result(home: Home) -> None:
    trial = Trial.make(local_steps=10_000, noise_multiplier=500.0)
    shop = workshop(home, [])
    shop.read(LoadData(trial.plan_hash, trial.plan))
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    assert isinstance(shop.round(train_effect(trial), stop), TrainingFailed)


def test_nothing_is_trained_before_the_records_of_this_plan_were_read(home: Home) -> None:
    trial, other = Trial.make(), Trial.make(rounds=3)
    shop = workshop(home, [])
    assert isinstance(shop.round(train_effect(trial), threading.Event()), TrainingFailed)
    shop.read(LoadData(other.plan_hash, other.plan))
    assert isinstance(shop.round(train_effect(trial), threading.Event()), TrainingFailed)
    assert trial.plan.silos == NAMES
