"""Settings and presets, and what is refused before anything runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from compare_settings import settings
from pydantic import ValidationError

from feddrm.compare import settings as module
from feddrm.compare import tables
from feddrm.compare.cells import Cell
from feddrm.compare.methods import METHODS
from feddrm.compare.plans import fraction_bits, plan_of
from feddrm.contract.errors import InputError, UsageError
from feddrm.contract.models import PARTITIONS
from feddrm.contract.sections import Queries
from feddrm.demo import rand


@pytest.mark.parametrize("preset", module.PRESETS)
def test_presets_are_settings_and_survive_json(preset: str) -> None:
    wanted = module.load(preset)
    assert wanted.name == preset
    assert module.Settings.model_validate_json(wanted.model_dump_json(by_alias=True)) == wanted


def test_the_papers_numbers() -> None:
    paper = module.load("cifar10-paper")
    train = paper.train
    assert (train.rounds, train.local_steps, train.batch, train.learning_rate) == (60, 10, 128, 0.01)
    assert (train.momentum, train.weight_decay, train.decay, train.target_weight) == (0.9, 5e-4, "cosine", 0.9)
    assert paper.epsilons == (math.inf,)


def test_scale_reaches_fifty_silos_with_part_of_them_in_a_round() -> None:
    scale = module.load("mnist-scale")
    assert {20, 50} <= set(scale.data.silos)
    assert scale.train.participation < 1


def test_rows_share_the_partitions_of_the_plans() -> None:
    for name, method in METHODS.items():
        # The paper's heads are personal from the first round on; the row that we recommend has them from stage 3 on.
        paper = {"feddrm": "fedavg", "feddrm-personal": "feddrm", "feddrm-stage1": "feddrm"}
        known = PARTITIONS.get(paper.get(name, name))
        if known is not None:
            assert method.personal == known, name


def test_rands_schema_is_the_demos() -> None:
    assert tables.schema_of("rand").model_dump(by_alias=True) == type(tables.schema_of("rand")).model_validate(
        rand.schema_document()
    ).model_dump(by_alias=True)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"methods": ["fedmagic"]}, "unknown"),
        ({"methods": ["local", "local"]}, "twice"),
        ({"seeds": [1, 1]}, "twice"),
        ({"seeds": [-1]}, "greater than or equal to 0"),
        ({"seeds": [1 << 63]}, "less than"),
        ({"data": {"source": "rand", "split_seed": -1}}, "greater than or equal to 0"),
        ({"epsilons": [0.0]}, "greater"),
        ({"epsilons": [3.0], "train": {"batch": 32}}, "sampling_rate"),
        ({"train": {"local_rounds": 3}}, "averaged"),
        ({"data": {"source": "mnist"}}, "no silos of their own"),
        ({"data": {"source": "rand", "split": "dirichlet", "silos": [4]}}, "own silos"),
        ({"data": {"source": "mnist", "split": "dirichlet"}}, "say how many"),
        ({"data": {"source": "mnist", "split": "fixed", "shift": "colour"}}, "shift"),
        ({"data": {"source": "files"}}, "files"),
        (
            {"model": {"kind": "frozen", "sha256": bytes(32), "form": "export", "features": 8, "hidden": [4]}},
            "extractor",
        ),
        ({"extractor": "public.pt"}, "extractor"),
        ({"data": {"validation": 1.0}}, "less than 1"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        settings(**changes)


def test_a_command_line_narrows() -> None:
    wanted = module.narrowed(settings(), "fedavg, local", "inf,3", 2)
    assert (wanted.methods, wanted.epsilons, wanted.seeds) == (("fedavg", "local"), (math.inf, 3.0), (0, 1))
    with pytest.raises(UsageError, match="numbers"):
        module.narrowed(settings(), None, "three", None)
    with pytest.raises(UsageError, match="unknown"):
        module.narrowed(settings(), "fedmagic", None, None)


def test_neither_preset_nor_file() -> None:
    with pytest.raises(UsageError, match="mnist-dp"):
        module.load("mnist-pd")


def test_a_misspelt_key_is_named(tmp_path: Path) -> None:
    place = tmp_path / "mine.toml"
    place.write_text('name = "mine"\nmethod = ["local"]\n')
    with pytest.raises(InputError, match="method"):
        module.load(str(place))


def test_files_lie_beside_the_settings(tmp_path: Path) -> None:
    place = tmp_path / "mine.toml"
    silos = "\n".join(f'site-{n} = "site-{n}.csv"' for n in (1, 2, 3))
    place.write_text(
        'name = "mine"\nmethods = ["local"]\nepsilons = [inf]\n[data]\nsource = "files"\n'
        f"[data.files.silos]\n{silos}\n"
        '[data.files.schema]\npatient = "id"\n[data.files.schema.target]\nkind = "classes"\ncolumn = "ill"\n'
        'values = ["no", "yes"]\n[[data.files.schema.columns]]\nkind = "numeric"\nname = "age"\nlower = 0.0\n'
        "upper = 99.0\n"
        '[model]\nkind = "linear"\n[train]\nrounds = 1\nlocal_steps = 1\nlearning_rate = 0.1\n'
    )
    for number in (1, 2, 3):
        lines = [f"p{row // 2},{20 + row},{'yes' if row % 3 else 'no'}" for row in range(40)]
        (tmp_path / f"site-{number}.csv").write_text("id,age,ill\n" + "\n".join(lines) + "\n")
    wanted = module.load(str(place))
    data = tables.natural(wanted.data, Path("nowhere"), 0)
    assert data.private
    assert data.names == ("site-1", "site-2", "site-3")
    # 20 patients of two records each; both records of a patient are on one side.
    assert [len(silo) for silo in data.silos] == [28, 28, 28]
    assert all(len(set(silo.patients)) == 14 for silo in data.silos)
    assert tables.natural(wanted.data, Path("nowhere"), 1).features.tolist() != data.features.tolist()


@pytest.mark.parametrize("silos", [3, 8, 50])
def test_sums_fit_the_ring(silos: int) -> None:
    bits = fraction_bits(silos)
    assert 16 <= bits <= 24
    assert silos * (4 * 2**bits + 1) < 2**30


def test_a_row_is_a_plan_that_an_operator_could_sign() -> None:
    wanted = settings()
    data = tables.natural(wanted.data, Path("nowhere"), 0)
    plan = plan_of(wanted, data, METHODS["feddrm"], None)
    assert plan.routing_fit is not None
    assert plan.training.target_weight == 1.0
    assert plan.unroutable == ""
    assert not plan.personal
    assert plan.tuned == {"target_head.weight", "target_head.bias"}
    assert plan.personal_head is not None
    assert plan.personal_head.start == "shared"
    # As in a plan that does not say otherwise.
    assert plan.queries == Queries()
    paper = plan_of(wanted, data, METHODS["feddrm-personal"], None)
    assert paper.training.target_weight == 0.5
    assert paper.personal_head is None
    two = settings(fit={"tie": 0.7})
    for routed in ("feddrm", "feddrm-no-shared", "feddrm-stage1"):
        assert plan_of(two, data, METHODS[routed], None).queries.second_opinion == 0.7
    assert plan_of(wanted, data, METHODS["fedavg-shared"], None).queries.second_opinion == 1.0
    assert plan_of(wanted, data, METHODS["fedper"], None).training.target_weight == 1.0


@pytest.mark.parametrize(
    ("method", "changes", "word"),
    [
        ("fedprox", {"train": {"proximal_mu": 1e5}}, r"training.*proximal_mu: times learning_rate more than 1"),
        ("fedrep", {"train": {"head_steps": 9}}, "none is left for the shared tensors"),
        ("fedavg", {"model": {"kind": "lenet_gn", "hidden": 120}}, "image"),
    ],
)
def test_settings_that_make_no_plan_are_the_users_to_correct(
    method: str, changes: dict[str, object], word: str
) -> None:
    wanted = settings(**changes)
    federation = tables.natural(wanted.data, Path(), 0)
    with pytest.raises(InputError, match=f"no plan for {method}: .*{word}"):
        plan_of(wanted, federation, METHODS[method], None)


def test_no_two_cells_share_a_file() -> None:
    epsilons = (3.0, 3.0000001, 3.00000001, 1e-7, 8.0, math.inf)
    names = [Cell("fedavg", epsilon, 0, 0).name for epsilon in epsilons]
    assert len(set(names)) == len(names)
    # Directories of comparisons that were begun have these.
    assert (names[0], names[4], names[5]) == ("fedavg-e3-k0-s0", "fedavg-e8-k0-s0", "fedavg-einf-k0-s0")
