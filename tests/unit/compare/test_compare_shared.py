"""The target head of all silos in the harness, users' own choosing of settings, and models on a public extractor."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compare_settings import settings

from feddrm.compare import cells, report, run, tables
from feddrm.compare.settings import Settings
from feddrm.compare.store import Store

NOWHERE = Path("no-such-folder")


def rows(wanted: Settings, folder: Path) -> dict[str, dict[str, Any]]:
    store = Store(folder, wanted)
    run.run(wanted, NOWHERE, store, 1, lambda _: None)
    return {row["method"]: row for row in report.rows(wanted, store)}


def test_a_head_that_is_all_of_an_answer_answers_whoever_is_asked(tmp_path: Path) -> None:
    wanted = settings(methods=["feddrm", "fedavg-shared"], fit={"shared_weight": 1.0, "home_weight": 0.0})
    found = rows(wanted, tmp_path)
    for row in found.values():
        assert row["system"] == row["ensemble"] == row["vote"] == row["random_silo"] == row["shared_head"]
    assert found["fedavg-shared"]["asked"] == 1.0
    assert found["fedavg-shared"]["own_silo"] == found["fedavg-shared"]["system"]
    assert found["fedavg-shared"]["routing"] is None


def test_at_home_and_for_others_without_its_part_silos_answer_by_themselves(tmp_path: Path) -> None:
    changes = {"shared_weight": 0.0, "home_weight": 0.0}
    found = rows(settings(methods=["feddrm-personal", "feddrm-no-shared"], fit=changes), tmp_path)
    shared, alone = found["feddrm-personal"], found["feddrm-no-shared"]
    assert alone["shared_head"] is None
    assert shared["shared_head"] is not None
    # The same training, and the same silos' models; the routes differ, since joint residuals are shortened.
    for key in ("own_silo", "random_silo", "ensemble", "vote", "averaged_head"):
        assert shared[key] == pytest.approx(alone[key], abs=2e-3), key
    assert shared["bytes"] > alone["bytes"]


def test_privacy_charges_both_heads_once(tmp_path: Path) -> None:
    found = rows(settings(methods=["feddrm", "fedavg-shared"], epsilons=[3.0]), tmp_path)
    assert all(0.97 * 3 < row["epsilon_spent"] <= 3 for row in found.values())


def test_choosing_sees_no_held_out_record() -> None:
    whole = tables.natural(settings().data, NOWHERE, 0)
    chosen = cells.federation_of(settings(data={"validation": 0.25}), NOWHERE, 0, 0)
    for place, (before, after) in enumerate(zip(whole.silos, chosen.silos, strict=True)):
        judged = chosen.features[chosen.home == place]
        assert len(after) + len(judged) == len(before)
        assert not set(after.patients) & (set(before.patients) - set(after.patients))
        trained = {row.tobytes() for row in before.features}
        assert all(row.tobytes() in trained for row in judged)
        left_out = len(set(before.patients)) - len(set(after.patients))
        assert left_out == round(0.25 * len(set(before.patients)))
    again = cells.federation_of(settings(data={"validation": 0.25}, seeds=[1]), NOWHERE, 0, 0)
    assert np.array_equal(again.features, chosen.features)


def test_a_public_extractor_is_between_records_and_network(tmp_path: Path) -> None:
    width = tables.natural(settings().data, NOWHERE, 0).features.shape[1]
    torch.manual_seed(0)
    program = torch.export.export(
        torch.nn.Sequential(torch.nn.Linear(width, 6), torch.nn.Tanh()), (torch.zeros(1, width),)
    )
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    (tmp_path / "public.pt").write_bytes(buffer.getvalue())
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    model = {"kind": "frozen", "sha256": digest, "form": "export", "features": 6}
    wanted = settings(methods=["feddrm"], extractor=str(tmp_path / "public.pt"), model=model)
    federation = cells.federation_of(wanted, NOWHERE, 0, 0)
    assert federation.features.shape[1] == 6
    assert all(silo.features.shape[1] == 6 for silo in federation.silos)
    assert 0 < rows(wanted, tmp_path / "there")["feddrm"]["system"] < 1
