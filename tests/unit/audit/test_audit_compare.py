"""show, diff and recompute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from audit_tools import Run, reseal, rewrite

from feddrm.contract.charge import charge
from feddrm.contract.errors import ExitCode
from privacy.accounting import epsilon


def copy_of(path: Path, name: str) -> Path:
    other = path.parent / name
    other.write_bytes(path.read_bytes())
    return other


def test_show_says_every_leaf_as_an_object_too(paper: Any, run: Run) -> None:
    _, out, _ = run("show", paper.export("a"), "--format", "json")
    shown = json.loads(out)["readable"]
    assert [leaf["number"] for leaf in shown] == list(range(paper.ledgers["a"].size))
    (plan,) = [leaf for leaf in shown if leaf["type"] == "PLAN"]
    assert (plan["name"], plan["delta"]) == ("first", 1e-5)
    assert "epsilon" in plan["text"]
    reserve = next(leaf for leaf in shown if leaf["type"] == "RESERVE")
    assert reserve["text"].startswith("stage 1 round 1: poisson-subsampled-gaussian, 5 steps, noise multiplier 1.5")


def test_diff_of_equal_bundles(paper: Any, run: Run) -> None:
    file = paper.export("a")
    code, out, _ = run("diff", file, copy_of(file, "copy.ledger"))
    assert code == 0
    assert "Both hold the same leaves." in out


@pytest.mark.parametrize("swap", [False, True])
def test_diff_says_which_extends_the_other(paper: Any, run: Run, swap: bool) -> None:
    old = copy_of(paper.export("a"), "old.ledger")
    number = paper.read("a")
    new = paper.export("a")
    files = (new, old) if swap else (old, new)
    code, out, _ = run("diff", *files)
    assert code == 0
    assert f"{new} extends the other from leaf {number} on" in out
    assert "DATASET" in out
    _, out, _ = run("diff", *files, "--format", "json")
    found = json.loads(out)
    assert (found["relation"], found["leaf"]) == (
        "first extends second" if swap else "second extends first",
        number,
    )
    assert [bundle["says"] is None for bundle in found["bundles"]] == [not swap, swap]


def test_diff_names_the_first_leaf_that_differs_and_what_each_says(paper: Any, run: Run) -> None:
    file = paper.export("a")
    other = copy_of(file, "other.ledger")
    number = next(n for n, body in enumerate(paper.ledgers["a"].bodies()) if b'"RELEASE"' in body)

    def change(fields: dict[str, Any]) -> None:
        leaf = fields["leaves"][number].replace(paper.model(1).hex(), "ee" * 32)
        assert leaf != fields["leaves"][number]
        leaves = [*fields["leaves"][:number], leaf, *fields["leaves"][number + 1 :]]
        reseal(fields, paper.keys["a"].identity, leaves)

    rewrite(other, change)
    code, out, _ = run("diff", file, other)
    assert code == ExitCode.VERIFICATION
    assert f"They part at leaf {number}" in out
    assert paper.model(1).hex()[:16] in out
    assert "ee" * 8 in out


def test_diff_says_when_a_head_is_not_of_the_leaves(paper: Any, run: Run) -> None:
    file = paper.export("a")
    cut = copy_of(file, "cut.ledger")
    rewrite(cut, lambda f: f.update(leaves=f["leaves"][:4]))
    code, out, _ = run("diff", cut, file)
    assert code == ExitCode.VERIFICATION
    assert f"{cut}: the head is NOT of these leaves" in out
    assert f"{file} extends the other from leaf 4 on" in out


def test_diff_of_two_ledgers_is_a_mistake(paper: Any, run: Run) -> None:
    code, out, err = run("diff", paper.export("a"), paper.export("b"))
    assert (code, out) == (ExitCode.USAGE, "")
    assert "feddrm/retina/b" in err


def test_recompute_gives_the_plan_s_own_figure_at_its_own_delta(paper: Any, run: Run) -> None:
    code, out, _ = run("recompute", paper.export("a"), paper.export("b"), "--delta", "1e-5", "--format", "json")
    assert code == 0
    found = json.loads(out)
    assert (found["verified"], [ledger["silo"] for ledger in found["ledgers"]]) == (False, ["a", "b"])
    whole = epsilon(charge(paper.plan.plan).events, 1e-5)
    for ledger in found["ledgers"]:
        (job,) = ledger["jobs"]
        assert job["spent"] == job["whole"] == {"pld": whole.pld, "rdp": whole.rdp}
        assert ledger["life"] == job["whole"]


def test_a_smaller_delta_costs_more_epsilon(paper: Any, run: Run) -> None:
    figures = []
    for delta in ("1e-4", "1e-5", "1e-7"):
        code, out, _ = run("recompute", paper.export("a"), "--delta", delta, "--format", "json")
        assert code == 0
        figures.append(json.loads(out)["ledgers"][0]["life"]["pld"])
    assert figures == sorted(set(figures))
    _, out, _ = run("recompute", paper.export("a"), "--delta", "1e-7")
    assert "for life, delta 1e-07 in all" in out
    assert f"{figures[-1]:.4f}" in out


@pytest.mark.parametrize("delta", ["0", "1", "1e-12", "nan", "-1", "inf"])
def test_a_delta_out_of_range_is_refused(paper: Any, run: Run, delta: str) -> None:
    assert run("recompute", paper.export("a"), f"--delta={delta}")[0] == ExitCode.INPUT


def test_a_ledger_that_contradicts_itself_is_not_recomputed(paper: Any, run: Run) -> None:
    file = paper.export("a")
    rewrite(file, lambda f: f["leaves"].append(f["leaves"][2]))
    rewrite(file, lambda f: f["leaves"].append(f["leaves"][1]))
    code, _, err = run("recompute", file, "--delta", "1e-5")
    assert code == ExitCode.VERIFICATION
    assert "feddrm-audit verify says more" in err


def test_hostile_text_never_steers_the_terminal(paper: Any, run: Run) -> None:
    file = paper.export("a")
    other = copy_of(file, "other.ledger")
    rewrite(other, lambda f: f["leaves"].__setitem__(1, "\x1b[2J"))
    for arguments in (("show", other), ("diff", file, other), ("recompute", other, "--delta", "1e-5")):
        _, out, err = run(*arguments)
        assert "\x1b" not in out + err
