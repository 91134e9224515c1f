"""An extractor's file: which bytes are loaded, and what people are told of one that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kinds import MakePlan

torch = pytest.importorskip("torch", reason="the silo extra is not installed")

from extractors import NAMED, encoder, images, plan_for, scripted  # noqa: E402

from feddrm.contract.errors import InputError  # noqa: E402
from feddrm.method.extractor import Extractor, extracted  # noqa: E402


def test_another_file_is_refused_before_it_is_loaded(
    make_kind: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(make_kind, scripted(tmp_path / "encoder.pt", encoder()))
    (tmp_path / "encoder.pt").write_bytes((tmp_path / "encoder.pt").read_bytes() + b"\0")

    def loaded(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("a file of another hash was loaded")

    monkeypatch.setattr(torch.jit, "load", loaded)
    with pytest.raises(InputError, match="is not the plan's extractor: its SHA-256") as caught:
        Extractor(plan, tmp_path / "encoder.pt", NAMED)
    assert "nothing of this one was loaded" in caught.value.remedy
    assert NAMED in caught.value.remedy
    with pytest.raises(InputError, match=r"nothing\.pt cannot be read") as caught:
        Extractor(plan, tmp_path / "nothing.pt", NAMED)
    assert caught.value.remedy.endswith(f" there, or correct {NAMED}.")
    with pytest.raises(InputError, match="needs a feature extractor") as caught:
        extracted(plan, None, images(), NAMED)
    assert NAMED in caught.value.remedy


def test_what_is_loaded_is_what_was_hashed(
    make_kind: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is exchanged after it was read: a second reading would load the other one."""
    file = tmp_path / "encoder.pt"
    plan = plan_for(make_kind, scripted(file, encoder()))
    read = Path.read_bytes

    def read_and_exchange(path: Path) -> bytes:
        data = read(path)
        torch.jit.script(torch.nn.Flatten().eval()).save(str(path))
        return data

    monkeypatch.setattr(Path, "read_bytes", read_and_exchange)
    extractor = Extractor(plan, file, NAMED)
    assert extractor.apply(images(2)).any()


def test_a_script_that_was_saved_in_training_mode_is_refused(make_kind: MakePlan, tmp_path: Path) -> None:
    """A part of it suffices. Put into evaluation mode here it might not be what its publisher tested."""
    file, half = tmp_path / "encoder.pt", encoder()
    half.norm.train()  # type: ignore[union-attr]
    torch.jit.script(half).save(str(file))
    with pytest.raises(
        InputError, match=r"encoder\.pt is the plan's extractor, but it was saved in training"
    ) as caught:
        Extractor(plan_for(make_kind, file.read_bytes()), file, NAMED)
    assert "Tell the operator: save it again after .eval()" in caught.value.remedy
    frozen = torch.jit.freeze(torch.jit.script(encoder()))
    frozen.save(str(file))
    assert Extractor(plan_for(make_kind, file.read_bytes()), file, NAMED).apply(images(2)).any()


@pytest.mark.parametrize("data", [b"", b"x" * 1000, "weights", "half"])
@pytest.mark.parametrize("form", ["torchscript", "export"])
def test_a_signed_file_of_no_form_is_told_in_words(
    make_kind: MakePlan, tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str, data: bytes | str
) -> None:
    file = tmp_path / "encoder.pt"
    if data == "weights":
        torch.save(encoder().state_dict(), file)
    else:
        file.write_bytes(scripted(file, encoder())[:2000] if isinstance(data, str) else data)
    with pytest.raises(InputError, match=f"no file of the form '{form}'"):
        Extractor(plan_for(make_kind, file.read_bytes(), form), file, NAMED)
    assert not caplog.records


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"features": 35}, r"gives \(1, 36\) for one record, not \(1, 35\)"),
        ({"form": "export"}, "but no file of the form 'export'"),
    ],
)
def test_a_plan_that_describes_it_wrongly_is_told_so(
    make_kind: MakePlan, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    file = tmp_path / "encoder.pt"
    plan = plan_for(make_kind, scripted(file, encoder()), **change)
    with pytest.raises(InputError, match=said):
        Extractor(plan, file, NAMED)
