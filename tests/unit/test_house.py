"""The rules of the house that no other tool checks."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("feddrm", "secagg", "privacy", "silo", "aggregator")
SOURCES = sorted(
    path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.parent != ROOT / "feddrm/v1"
)

# Every module of a role that must run where torch is not installed, imported in a fresh process.
_WALK = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
loaded = {"torch", "opacus"} & set(sys.modules)
sys.exit(f"loaded {sorted(loaded)}" if loaded else 0)
"""


def imported_names(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize(
    "packages", [("aggregator", "privacy", "secagg"), ("feddrm.audit", "feddrm.contract", "feddrm.demo")]
)
def test_coordinator_and_auditor_never_load_torch(packages: tuple[str, ...]) -> None:
    result = subprocess.run([sys.executable, "-c", _WALK, *packages], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_walk_would_find_torch() -> None:
    pytest.importorskip("torch")
    result = subprocess.run([sys.executable, "-c", _WALK, "feddrm.method"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "torch" in result.stderr


@pytest.mark.parametrize(
    "module",
    ["aggregator.cli", "silo.cli", "feddrm.query.cli", "feddrm.audit.cli", "feddrm.demo.cli", "feddrm.commands"],
)
def test_help_loads_nothing_that_computes_or_connects(module: str) -> None:
    code = (
        "import sys, importlib, contextlib, io\n"
        f"sys.argv = ['x', '--help']\nm = importlib.import_module('{module}')\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n    m.main()\n"
        "heavy = {'torch', 'opacus', 'dp_accounting', 'scipy', 'grpc', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'loaded {sorted(heavy)}' if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_code_is_named_in_one_place(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    names = imported_names(path)
    messages = {name for name in names if re.search(r"_pb2(\.|$)", name)}
    services = {name for name in names if re.search(r"_pb2_grpc(\.|$)", name)}
    if not re.match(r"feddrm/contract/codec(_\w+)?\.py", relative):
        assert not messages, f"{relative} names {messages}"
    if not re.match(
        r"(aggregator/service\w*|silo/(link|relay)\w*|feddrm/query/\w+|aggregator/operator\w*|feddrm/transport(/\w+)?)\.py",
        relative,
    ):
        assert not services, f"{relative} names {services}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_unpickles(path: Path) -> None:
    banned = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
    assert not banned & {name.split(".")[0] for name in imported_names(path)}
    assert "torch.load" not in path.read_text()


def test_no_file_is_longer_than_one_can_hold_in_mind() -> None:
    written = [
        *SOURCES,
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "bench").rglob("*.py"),
        *(ROOT / "examples").rglob("*.py"),
    ]
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in written}
    assert len(lines) > 500
    assert {name: count for name, count in lines.items() if count > 300} == {}


def test_every_package_says_that_it_is_typed() -> None:
    assert all((ROOT / package / "py.typed").is_file() for package in PACKAGES)


def test_proto_is_no_python_package() -> None:
    assert not list((ROOT / "proto").rglob("*.py")), "proto/__init__.py would shadow proto-plus"


def test_paths_in_commands_that_are_printed_are_quoted_for_a_shell() -> None:
    """A directory with a space would make a line that nobody can paste. Hashes need none, nor what was quoted."""
    command = re.compile(r"\bfeddrm-(?:silo|query|aggregator|audit) [a-z][^\"\n]*?\{(?!in_shell\()(\w*)")
    found = {match.group(1) for path in SOURCES for match in command.finditer(path.read_text())}
    assert found <= {"released", "signed", "kit"}


def test_sources_name_no_machine_path() -> None:
    pattern = re.compile(r"""["'](/home/|/root/|/Users/|/tmp/)""")
    assert not [str(path) for path in SOURCES if pattern.search(path.read_text())]


def test_every_module_imports_without_side_effects_on_the_directory(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-c", _WALK, "aggregator", "silo", "secagg", "privacy"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Error" not in result.stderr, result.stderr
    assert not list(tmp_path.iterdir())


def all_labels() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in ("secagg.labels", "privacy.labels", "feddrm.contract.labels"):
        module = importlib.import_module(name)
        for key, value in vars(module).items():
            if isinstance(value, bytes):
                found[f"{name}.{key}"] = value
    return found


def test_no_two_labels_collide() -> None:
    labels = all_labels()
    assert len(labels) > 20
    values = sorted(labels.values())
    assert len(set(values)) == len(values)
    # A label that is another's prefix could stand for it where the rest is attacker-chosen.
    assert not [(a, b) for a in values for b in values if a != b and b.startswith(a + b"\x00")]


def test_labels_stand_in_label_files_only() -> None:
    pattern = re.compile(r"""b["']feddrm[ /]""")
    allowed = {"secagg/labels.py", "privacy/labels.py", "feddrm/contract/labels.py"}
    offenders = [
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if pattern.search(path.read_text()) and path.relative_to(ROOT).as_posix() not in allowed
    ]
    assert not offenders


def test_walk_covers_all_packages() -> None:
    assert {module.name for module in pkgutil.iter_modules([str(ROOT)])} >= set(PACKAGES)
