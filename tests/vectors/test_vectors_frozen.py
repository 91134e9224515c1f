"""The frozen files are what the code makes: a change of the wire, of a derivation or of any label breaks one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import generate
import pytest
from generate import FROZEN, differing, documents, encoded

import secagg
from secagg import labels

HERE = Path(__file__).resolve().parent

# Each changed copy of the labels is imported anew, with everything above it, and makes sessions, then
# evidence, until something differs from the frozen one. One process for all: most of a start goes into numpy.
_BREAK = """
import importlib, json, pathlib, sys
package, vectors, changes = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
sys.dont_write_bytecode = True
sys.path[:0] = [str(package.parent), str(vectors)]
source = (package / "labels.py").read_text()
names = ["k3-full", "k5-lost-before-masked", "k3-abort-after-release"]
frozen = {name: json.loads((vectors / "frozen" / f"{name}.json").read_text()) for name in names}
broken = {}
for what, (old, new) in changes.items():
    assert source.count(old) == 1 or old == new, what
    (package / "labels.py").write_text(source.replace(old, new))
    for module in [name for name in sys.modules if name.partition(".")[0] == "secagg" or name.startswith("vectors_")]:
        del sys.modules[module]
    importlib.invalidate_caches()
    inputs, session = importlib.import_module("vectors_inputs"), importlib.import_module("vectors_session")
    assert pathlib.Path(sys.modules["secagg.labels"].__file__).parent == package
    broken[what] = None
    for scenario in inputs.SCENARIOS:
        if scenario.name in frozen and broken[what] is None:
            made = session.scenario_json(scenario)
            for one, other in zip(made["sessions"], frozen[scenario.name]["sessions"], strict=True):
                for index, (message, known) in enumerate(zip(one["messages"], other["messages"], strict=True)):
                    if message != known and broken[what] is None:
                        broken[what] = f"{scenario.name} {index} {message['step']}"
    if broken[what] is None:
        made = {one.name: session.scenario_json(one) for one in inputs.SCENARIOS if one.name in ("k5-retry", names[1])}
        for name, document in importlib.import_module("vectors_verdicts").negative_documents(made):
            known = json.loads((vectors / "frozen" / f"{name}.json").read_text())["cases"]
            different = [case["name"] for case, other in zip(document["cases"], known, strict=True) if case != other]
            if different and broken[what] is None:
                broken[what] = f"{name} {different[0]}"
print(json.dumps(broken))
"""


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return dict(documents())


def test_the_generator_makes_the_frozen_files_byte_for_byte(made: dict[str, Any]) -> None:
    assert differing(FROZEN, made) == []


def test_files_are_written_without_loss(made: dict[str, Any]) -> None:
    for name, value in made.items():
        assert json.loads(encoded(value)) == value, name
        assert value["format"].endswith(" 1")


def test_the_command_writes_checks_and_names_what_differs(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(generate, "documents", lambda: iter(made.items()))

    def run(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["generate.py", *arguments, str(tmp_path / "new")])
        try:
            generate.main()
        except SystemExit as end:
            return end.code
        return None

    assert run() is None
    assert run("--check") == 0
    full = tmp_path / "new" / "k3-full.json"
    full.write_text(full.read_text().replace('"stage": 1', '"stage": 2'))
    (tmp_path / "new" / "k5-full.json").unlink()
    (tmp_path / "new" / "surplus.json").write_text("{}\n")
    assert str(run("--check")).split("\n")[1:] == ["k3-full.json", "k5-full.json", "surplus.json"]


def every_label() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, value in vars(labels).items():
        if isinstance(value, bytes):
            found[name] = value
        elif name.isupper() and isinstance(value, dict):
            found |= {f"{name}.{step.name}": label for step, label in value.items()}
    return found


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By label, which message of which file it breaks when one character is added to it."""
    package = tmp_path_factory.mktemp("changed") / "secagg"
    shutil.copytree(Path(secagg.__path__[0]), package, ignore=shutil.ignore_patterns("__pycache__"))
    changes = {name: (f'b"{label.decode()}"', f'b"{label.decode()}!"') for name, label in every_label().items()}
    changes["unchanged"] = ("labels", "labels")
    result = subprocess.run(
        [sys.executable, "-c", _BREAK, str(package), str(HERE), json.dumps(changes)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", every_label())
def test_a_change_of_any_label_breaks_a_frozen_message(broken: dict[str, Any], name: str) -> None:
    assert broken[name], f"no vector covers labels.{name}"


def test_the_same_labels_break_nothing(broken: dict[str, Any]) -> None:
    assert broken["unchanged"] is None
