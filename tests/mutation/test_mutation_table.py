"""The tables of removed checks are not stale: what they name exists. `make mutants` runs them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache

import pytest
from mutants import ROOT, Mutant, tables

MUTANTS = tables()


@cache
def names_in(file: str) -> frozenset[str]:
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef))


@cache
def source_of(file: str) -> str:
    return (ROOT / file).read_text()


def rows_of(page: str, section: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text().partition(f"## {section}")[2].partition("\n## ")[0]
    return [row for row in re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE) if row not in ("where", "trap", "---")]


def problem(mutant: Mutant) -> str:
    """What is stale about an entry, or nothing."""
    file, _, name = mutant.test.partition("::")
    if not (ROOT / file).exists() or name.partition("[")[0] not in names_in(file):
        return f"no test {mutant.test}"
    try:
        changed = mutant.mutated(source_of(mutant.file))
        ast.parse(changed)
    except (LookupError, SyntaxError) as error:
        return f"{mutant.row}: {mutant.check}: {error}"
    return f"{mutant.check}: nothing changes" if changed == source_of(mutant.file) else ""


def test_every_entry_names_one_fragment_and_a_test() -> None:
    assert [text for text in map(problem, MUTANTS) if text] == []


@pytest.mark.parametrize(("page", "section"), [("secagg.md", "Checks"), ("privacy.md", "Traps")])
def test_every_row_of_the_page_is_removed_somewhere(page: str, section: str) -> None:
    rows = rows_of(page, section)
    assert len(rows) > 15
    assert set(rows) <= {mutant.row for mutant in MUTANTS}


def test_no_check_is_listed_twice() -> None:
    again = Counter((mutant.row, mutant.check, mutant.test) for mutant in MUTANTS)
    assert [entry for entry, count in again.items() if count > 1] == []
