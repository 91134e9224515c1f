"""`feddrm-silo ledger open` on a silo's real files: the records of a reading, once and for the auditor alone."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from recovery_world import CAPS, Federation, begun

from feddrm.contract.errors import InputError, VerificationError
from feddrm.contract.home import load_silo_home
from feddrm.contract.plan import Plan
from feddrm.contract.release import schema_hash
from privacy.commitments import commit_dataset, parse_opening
from privacy.gate import Gate
from silo.assembly import open_ledger
from silo.context import commitment_key
from silo.data import load_records
from silo.home import Home
from silo.opening import open_leaf
from silo.state import State

NOW = 1_700_000_000_000
NONCE = b"n" * 32


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Federation]:
    yield from begun(tmp_path)


def table(plan: Plan, rows: int) -> str:
    schema = plan.schema_
    names = [schema.patient, schema.target.column, *(column.name for column in schema.columns)]
    lines = [",".join(dict.fromkeys(names))]
    lines += [",".join([f"p{number}"] + ["0"] * (len(lines[0].split(",")) - 1)) for number in range(rows)]
    return "\n".join(lines) + "\n"


def test_a_reading_is_opened_and_only_while_the_records_are_the_same(
    world: Federation,
    tmp_path: Path,
) -> None:
    home = Home(world.path / "alpha")
    plan = world.work.plan
    (home.local / "x.csv").write_text(table(plan, 5))
    state = State.open(home.database)
    key = commitment_key(state, lambda count: b"k" * count)
    digest = load_records(home, plan.schema_).digest
    with open_ledger(home, load_silo_home(home.root), state) as ledger:
        number = Gate(ledger, CAPS).record_dataset(
            world.work.hash,
            commit_dataset(key, digest, NONCE),
            schema_hash(plan),
            patient="id",
            public_size=1000,
            now_ms=NOW,
        )
    state.set_fact(f"dataset {number}", NONCE)
    state.close()
    out = tmp_path / "opening.json"
    assert open_leaf(home.root, number, out) == "the records that were read"
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    opened = parse_opening(out.read_bytes())
    assert opened.opens(commit_dataset(key, digest, NONCE))
    assert key.hex() not in out.read_text(), "the key of all commitments stays here"
    (home.local / "x.csv").write_text(table(plan, 6))
    with pytest.raises(VerificationError, match="not what leaf"):
        open_leaf(home.root, number, tmp_path / "second.json")
    for leaf, words in ((0, "holds no commitment"), (99, "no leaf 99"), (4, "deleted when its round ended")):
        with pytest.raises(InputError, match=words):
            open_leaf(home.root, leaf, tmp_path / "third.json")
    assert not (tmp_path / "third.json").exists()
