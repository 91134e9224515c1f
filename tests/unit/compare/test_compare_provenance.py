"""Rows in one directory come from one code, the same libraries and the same records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from compare_settings import settings

from feddrm.compare import provenance
from feddrm.compare.settings import Settings
from feddrm.compare.store import Store
from feddrm.contract.errors import InputError, UsageError


@pytest.mark.parametrize(
    ("name", "before", "words"),
    [
        ("code", "0" * 64, "other code"),
        ("torch", "1.0", f"torch 1.0, now {torch.__version__}"),
        ("processor", "MMX", "processor MMX, now"),
    ],
)
def test_rows_of_other_code_libraries_or_processors_are_not_mixed_with_new_ones(
    name: str, before: str, words: str, tmp_path: Path
) -> None:
    Store(tmp_path, settings())
    place = tmp_path / "made-by.json"
    raw = json.loads(place.read_text())
    place.write_text(json.dumps({**raw, name: before}))
    with pytest.raises(UsageError, match=re.escape(words)) as refusal:
        Store(tmp_path, settings())
    assert "--dir" in str(refusal.value.remedy)
    place.write_text(json.dumps(raw))
    Store(tmp_path, settings())
    place.unlink()
    with pytest.raises(UsageError, match="unknown"):
        Store(tmp_path, settings())


def own(folder: Path) -> Settings:
    raw = settings().model_dump(mode="python", by_alias=True)
    schema = {
        "patient": "id",
        "target": {"kind": "classes", "column": "ill", "values": ["no", "yes"]},
        "columns": [{"kind": "numeric", "name": "age", "lower": 0.0, "upper": 99.0}],
    }
    files = {name: folder / f"{name}.csv" for name in ("a", "b", "c")}
    for number, path in enumerate(files.values()):
        path.write_text(f"id,age,ill\np1,{number},no\n")
    return Settings.model_validate({**raw, "data": {"source": "files", "files": {"schema": schema, "silos": files}}})


def test_a_users_file_that_changed_is_another_comparison(tmp_path: Path) -> None:
    wanted = own(tmp_path)
    Store(tmp_path / "kept", wanted)
    Store(tmp_path / "kept", wanted)
    with (tmp_path / "b.csv").open("a") as file:
        file.write("p2,50,yes\n")
    with pytest.raises(UsageError, match="other records of b") as refusal:
        Store(tmp_path / "kept", wanted)
    assert "records of a" not in str(refusal.value)
    (tmp_path / "b.csv").unlink()
    with pytest.raises(InputError, match=r"b\.csv"):
        Store(tmp_path / "other", wanted)


def test_the_codes_hash_follows_every_file_of_it_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "made_up_package"
    (package / "inner" / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "terms.toml").write_text("a = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(provenance, "_CODE", {"made_up_package": ("inner",)})
    first = provenance.provenance(settings())["code"]
    (package / "inner" / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert provenance.provenance(settings())["code"] == first
    (package / "inner" / "terms.toml").write_text("a = 2\n")
    assert provenance.provenance(settings())["code"] != first
