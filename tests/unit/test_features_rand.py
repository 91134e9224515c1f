"""The demo's data: real sites, nothing that leaks, nobody in both files, and a plan within its budget."""

from __future__ import annotations

import hashlib
import itertools
import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from feddrm.contract.charge import charge
from feddrm.contract.plan import Plan, default_threshold
from feddrm.demo import rand
from feddrm.features import Table, encode, read_table

SPENDING = {"outpdol", "drugdol", "suppdol", "mentdol", "inpdol", "meddol", "lnmeddol", "binexp"}
VISITS = {"totadm", "inpmis", "mentvis", "mdvis", "notmdvis"}
LEAKS = SPENDING | VISITS | {"zper", "site", "plan"}
DATA = resources.files("feddrm.demo") / "data"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> rand.RandFiles:
    return rand.write_files(tmp_path_factory.mktemp("rand"))


@pytest.fixture(scope="module")
def source() -> Table:
    with resources.as_file(DATA / "randhie.csv.gz") as path:
        return read_table(path)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan.model_validate(rand.plan_document("rand", 1))


def test_the_embedded_data_are_those_of_the_provenance() -> None:
    stated = dict(re.findall(r"\| `(.+)` \| `([0-9a-f]{64})` \|", (DATA / "PROVENANCE.md").read_text()))
    assert set(stated) == {"randhie.csv.gz", "randdesc.txt"}
    for name, digest in stated.items():
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == digest


def test_no_leaking_column_is_a_feature(plan: Plan) -> None:
    assert not LEAKS & {column.name for column in plan.schema_.columns}


def test_each_site_holds_its_own_persons_and_no_held_out_one(files: rand.RandFiles, source: Table) -> None:
    everybody = {site: {p for p in source.columns["zper"] if p[0] == site[-1]} for site in rand.SITES}
    for site, path in files.train.items():
        table = read_table(path)
        persons = set(table.columns["zper"])
        assert "site" not in table.columns
        assert persons < everybody[site]
        assert len(persons) == len(everybody[site]) - round(0.3 * len(everybody[site]))
        # All years of a person are on the same side.
        assert len(table) == sum(p in persons for p in source.columns["zper"])
        assert abs(files.public_size[site] / len(persons) - 1) < 0.04


def test_every_record_is_in_exactly_one_file(files: rand.RandFiles, source: Table) -> None:
    assert sum(len(read_table(path)) for path in files.train.values()) + len(files.truth) == len(source)


def test_the_querier_s_file_does_not_tell_the_site(files: rand.RandFiles, plan: Plan) -> None:
    table = read_table(files.held_out)
    assert list(table.columns) == [column.name for column in plan.schema_.columns]
    sites = [record.site for record in files.truth]
    # In order of sites neighbours would agree nearly always; by chance they do at the sum of squared shares.
    agreeing = sum(a == b for a, b in itertools.pairwise(sites)) / len(sites)
    by_chance = sum((sites.count(site) / len(sites)) ** 2 for site in rand.SITES)
    assert abs(agreeing - by_chance) < 0.03


def test_the_truth_belongs_to_its_row(files: rand.RandFiles, source: Table) -> None:
    table = read_table(files.held_out)
    names = list(table.columns)
    known: dict[tuple[str, ...], set[tuple[str, str]]] = {}
    for row in range(len(source)):
        cells = tuple(source.columns[name][row] for name in names)
        label = rand.LABELS[float(source.columns["drugdol"][row]) > 0]
        known.setdefault(cells, set()).add((f"site-{source.columns['site'][row]}", label))
    rows = zip(*table.columns.values(), strict=True)
    for cells, truth in zip(rows, files.truth, strict=True):
        assert (truth.site, truth.label) in known[cells]


def test_everything_encodes_by_the_plan(files: rand.RandFiles, plan: Plan) -> None:
    for site, path in files.train.items():
        data = encode(read_table(path), plan.schema_)
        assert data.targets is not None
        assert rand.LABELS[int(data.targets.mean() > 0.5)] == files.majority[site]
    assert encode(read_table(files.held_out), plan.schema_, targets=False).features.shape[1] == plan.schema_.width


def test_files_are_the_same_everywhere(files: rand.RandFiles, tmp_path: Path) -> None:
    again = rand.write_files(tmp_path)
    assert again.held_out.read_bytes() == files.held_out.read_bytes()
    assert all(again.train[site].read_bytes() == files.train[site].read_bytes() for site in rand.SITES)
    assert again.truth == files.truth


def test_bin_edges_are_round_numbers(plan: Plan) -> None:
    """An edge with many digits would be a quantile, and a quantile is computed from patients."""
    edges = [edge for column in plan.schema_.columns for edge in getattr(column, "edges", ())]
    assert edges
    assert all(edge == round(edge) or edge == round(edge, 2) for edge in edges)


def test_the_plan_s_text_is_its_document(plan: Plan) -> None:
    assert Plan.model_validate(tomllib.loads(rand.plan_text("rand", 1))).body() == plan.body()


def test_the_job_stays_below_its_cap(plan: Plan) -> None:
    cost = charge(plan)
    assert 2.5 < cost.epsilon <= rand.EPSILON_CAP == 3.0
    assert cost.epsilon < cost.epsilon_alone <= rand.EPSILON_CAP_ALONE
    assert plan.privacy.delta == 1e-5
    assert plan.secure_aggregation.threshold == default_threshold(len(plan.silos))
