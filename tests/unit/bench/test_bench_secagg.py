"""The benchmark measures what it says. No test here asks how fast anything is."""

from __future__ import annotations

import json
import re
import tomllib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM
from packaging.requirements import Requirement

from bench.flower import Flower, interpreter
from bench.inputs import CLIP, threshold, update
from bench.limit import limit
from bench.memory import Memory, client_memory
from bench.ours import Clock, session
from bench.secagg import Case, cases, dropouts_of, measure, readable, summary

ROOT = Path(__file__).resolve().parents[3]
KEYS = "n cohort dropouts client_ours_s client_flower_s server_ours_s server_flower_s mask_s mask_limit_s"
MEBIBYTE = 1 << 20


def row(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(KEYS.split(), 1.0) | {"n": 1_000_000, "cohort": 20, "dropouts": 0}
    return values | changes


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if re.match(r"[\w.-]+==", line))


def test_a_session_measures_every_survivor_and_nobody_else() -> None:
    measured = session(64, 5, threshold(5), 1, Clock)
    assert len(measured.silos) == 4
    assert all(clock.spent > 0 for clock in (*measured.silos, measured.collecting, measured.unmasking))


def test_without_flower_its_columns_are_empty_and_the_row_is_whole() -> None:
    found, unmask = measure(Case(64, 5, 1, 1), None, (2e-3, 1e-3))
    assert list(found) == KEYS.split()
    assert [key for key, value in found.items() if value is None] == ["client_flower_s", "server_flower_s"]
    assert 0 < unmask < found["server_ours_s"]
    assert json.loads(json.dumps(found)) == found
    assert readable(found, 1)["client, ratio"] is None


def test_flower_sums_the_same_updates() -> None:
    python = interpreter()
    if python is None:
        pytest.skip("Flower is not installed here; `make bench` installs it")
    with Flower(python) as flower:
        found, _ = measure(Case(64, 5, 1, 1), flower, (2e-3, 1e-3))
        with pytest.raises(RuntimeError, match="ended with 1"):
            # Fewer survivors than the threshold: the runner fails rather than time a sum that did not come about.
            flower.session(64, 5, 5, 1)
    assert all(value > 0 for key, value in found.items() if key.endswith("_s"))


def test_all_cohorts_of_the_promise_are_run_and_keep_their_threshold() -> None:
    run = {(case.n, case.cohort, case.dropouts) for case in cases(quick=False)}
    assert {(n, cohort) for n, cohort, _ in run} == {(n, k) for n in (10**5, 10**6) for k in (5, 10, 20, 50, 100)}
    assert {(k, lost) for _, k, lost in run} >= {(10, 0), (10, 1), (20, 2), (50, 5), (100, 0), (100, 33)}
    for cohort in (5, 10, 20, 50, 100):
        assert cohort - dropouts_of(cohort)[1] >= threshold(cohort)


def test_updates_differ_and_stay_in_the_clipping_range() -> None:
    one, other = update(1, 1000), update(2, 1000)
    assert one.dtype == np.float32
    assert not np.array_equal(one, other)
    assert CLIP / 2 < np.abs(one).max() <= CLIP


@pytest.mark.parametrize("chunk", [64, 256, 4096])
@pytest.mark.parametrize("mode", [CTR(bytes(16)), GCM(bytes(12))], ids=["ctr", "gcm"])
def test_the_limit_adds_the_whole_keystream(mode: CTR | GCM, chunk: int) -> None:
    """A limit that skipped bytes would flatter nobody but the reader."""
    target, key = np.ones(1001, dtype="<u4"), bytes(range(32))
    limit(target, key, mode, chunk)()
    stream = np.frombuffer(Cipher(AES256(key), mode).encryptor().update(bytes(target.nbytes)), dtype="<u4")
    assert np.array_equal(target, stream + np.uint32(1))


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
def test_working_memory_leaves_out_the_vector_and_counts_temporaries_before_and_after_it() -> None:
    before, after = Memory(), Memory()
    with before as meter:
        temporary = bytes(3 * MEBIBYTE)
        del temporary
        vector = bytes(MEBIBYTE)
        meter.produced(len(vector))
    with after as meter:
        longer = bytes(2 * MEBIBYTE)
        meter.produced(len(longer))
        temporary = bytes(3 * MEBIBYTE)
        del temporary
    assert 1.9 * MEBIBYTE < before.working < 3.1 * MEBIBYTE
    assert 2.9 * MEBIBYTE < after.working < 3.1 * MEBIBYTE


@pytest.mark.usefixtures("traced")
def test_working_memory_counts_what_is_kept_between_steps() -> None:
    meter = Memory()
    with meter:
        kept = bytes(MEBIBYTE)
    with meter:
        temporary = bytes(MEBIBYTE)
        del temporary
    assert 1.9 * MEBIBYTE < meter.working < 2.1 * MEBIBYTE
    assert len(kept) == MEBIBYTE


def test_client_memory_is_measured_on_real_silos() -> None:
    small, large = client_memory(64, 5), client_memory(64, 10)
    assert 1_000 < small < large < MEBIBYTE


def test_the_summary_takes_the_worst_row() -> None:
    rows = [
        row(client_flower_s=9.0, server_flower_s=30.0),
        row(cohort=5, client_flower_s=4.0),
        row(n=100_000, client_flower_s=1.0, server_flower_s=25.0, mask_s=1.5),
        row(cohort=100, client_flower_s=None, server_flower_s=None),
    ]
    found = summary(rows, 2.5, MEBIBYTE // 2)
    assert [target.value for target in found] == [4.0, 25.0, 1.5, 2.5, 0.5]
    assert [target.verdict for target in found] == ["NOT MET", "met", "NOT MET", "NOT MET", "met"]


def test_the_summary_does_not_judge_what_was_not_measured() -> None:
    found = summary([row(client_flower_s=None, server_flower_s=None)], None, None)
    assert [target.verdict for target in found] == [
        "not measured",
        "not measured",
        "met",
        "not measured",
        "not measured",
    ]


def test_both_sides_are_pinned_alike_and_flower_is_what_the_extra_names() -> None:
    ours, theirs = pins("constraints.txt"), pins("constraints-bench.txt")
    assert {name: theirs[name] for name in ("numpy", "cryptography")} == {
        name: ours[name] for name in ("numpy", "cryptography")
    }
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (requirement,) = (Requirement(text) for text in extras["bench"])
    assert requirement.name == "flwr"
    assert requirement.specifier.contains(theirs["flwr"])
    assert not {"torch", "opacus"} & set(theirs)


def test_a_part_of_the_run_has_the_cohorts_that_were_asked_for() -> None:
    assert {case.cohort for case in cases(quick=False, cohorts=[20, 5])} == {5, 20}
    assert [case for k in (5, 10, 20) for case in cases(quick=True, cohorts=[k])] == cases(quick=True)
