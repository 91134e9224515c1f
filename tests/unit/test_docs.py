"""Documents that name commands, tests and files must name ones that exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from feddrm.contract.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "THREAT_MODEL.md", ROOT / "DECISIONS.md", *sorted((ROOT / "docs").glob("*.md"))]


def defined_tests() -> set[str]:
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        names |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    return names


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_a_document_cites_exists(document: Path) -> None:
    cited = set(re.findall(r"`(test_\w+)`", document.read_text()))
    assert cited <= defined_tests(), sorted(cited - defined_tests())


def test_the_threat_model_cites_tests() -> None:
    assert len(re.findall(r"`test_\w+`", (ROOT / "THREAT_MODEL.md").read_text())) > 40


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_links_to_exists(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", document.read_text())
    assert not [link for link in links if not (document.parent / link).exists()]


def attacks() -> list[list[str]]:
    """Rows of the tables in docs/attacks.md: attack, and the cells of its three levels."""
    lines = (ROOT / "docs" / "attacks.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in rows if row[0] != "attack" and not row[0].startswith("---")]


@pytest.mark.parametrize("row", attacks(), ids=lambda row: row[0])
def test_every_attack_is_played_by_a_test(row: list[str]) -> None:
    assert len(row) == 4
    assert any("`test_" in cell for cell in row[1:])
    # A cell says which tests play it, or that the level adds nothing.
    assert all(cell == "-" or "`test_" in cell for cell in row[1:]), row


MODULES = {
    "feddrm": "feddrm.commands",
    "feddrm-silo": "silo.cli",
    "feddrm-aggregator": "aggregator.cli",
    "feddrm-query": "feddrm.query.cli",
    "feddrm-audit": "feddrm.audit.cli",
}


def readme_commands() -> set[tuple[str, ...]]:
    """Each command line of README as (program, sub-command, ...) up to the first argument."""
    found: set[tuple[str, ...]] = set()
    for line in (ROOT / "README.md").read_text().splitlines():
        for part in line.strip().split("&&"):
            words = part.split("#")[0].split()
            if line.startswith("    ") and words and words[0] in MODULES:
                verbs = [word for word in words[1:3] if re.fullmatch(r"[a-z]+", word)]
                found.add((words[0], *verbs))
    return found


@pytest.mark.parametrize("command", sorted(readme_commands()), ids=" ".join)
def test_every_command_of_the_readme_exists(command: tuple[str, ...]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", MODULES[command[0]], *command[1:], "--help"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", sorted(readme_commands()), ids=" ".join)
def test_every_option_of_the_readme_exists(command: tuple[str, ...]) -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", MODULES[command[0]], *command[1:], "--help"], capture_output=True, text=True, check=False
    ).stdout
    for line in (ROOT / "README.md").read_text().splitlines():
        for part in line.strip().split("&&"):
            words = part.split("#")[0].split()
            if line.startswith("    ") and tuple(words[: len(command)]) == command:
                for option in re.findall(r"(--[a-z-]+)", part.split("#")[0]):
                    assert option in help_text, f"{' '.join(command)} has no {option}"


def test_the_plan_page_is_a_plan() -> None:
    """Its example is parsed as it stands, and names every key that a plan has."""
    text = (ROOT / "docs/plan.md").read_text()
    example = text.split("```toml\n")[1].split("```")[0]
    plan = Plan.model_validate(tomllib.loads(example))
    later = (plan.routing_fit, plan.personal_head, plan.evaluation)
    for section in (plan.training, plan.privacy, plan.secure_aggregation, plan.queries, plan.deadlines, *later):
        for key in type(section).model_fields:
            assert f"{key} = " in example or f".{key}]" in example, key
