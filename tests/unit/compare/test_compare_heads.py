"""Stage 3 in a comparison, and why heads are a silo's own only then: small silos under noise."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from compare_settings import settings

from feddrm.compare import cells, data, tables
from feddrm.compare.budget import Noise, noise_for
from feddrm.compare.judging import judge
from feddrm.compare.methods import METHODS
from feddrm.compare.metrics import Quality
from feddrm.compare.plans import plan_of, terms_of
from feddrm.compare.settings import Settings
from feddrm.compare.training import Training
from feddrm.contract.charge import charge
from feddrm.contract.plan import Plan
from feddrm.contract.schedule import STAGE_PERSONAL
from feddrm.contract.stages import noise_event
from privacy.accounting import claim

NOWHERE = Path("no-such-folder")
PLAN_PAGE = Path(__file__).parents[3] / "docs" / "plan.md"
RAND = tables.natural(settings().data, NOWHERE, 0)


def small_silos(seed: int) -> data.Federation:
    """Twelve silos of forty patients, four classes that lie apart, and hardly two classes in a silo."""
    generator = np.random.default_rng(seed)
    centres = np.sign(np.random.default_rng(9).normal(size=(4, 16)))
    owners = np.repeat(np.arange(12), 60)
    mixes = generator.dirichlet([0.3] * 4, size=12)
    labels = np.concatenate([generator.choice(4, 60, p=mix) for mix in mixes])
    features = 0.3 * centres[labels] + generator.normal(0, 0.3, (720, 16))
    training = np.tile(np.arange(60) < 40, 12)
    rows = np.clip(features, -1, 1).astype(np.float32)
    return data.divide(rows, labels, owners, training, data.image_schema((1, 4, 4), 4))


def wanted_there(**changes: object) -> Settings:
    train = {"rounds": 10, "local_steps": 4, "private_learning_rate": 1.0, "sampling_rate": 0.5, "target_weight": 0.9}
    fit = {"sums": 30, "average_from": 16, "step_size": 32.0, "momentum": 0.9, "clip_norm": 0.5}
    tune = {"private_learning_rate": 0.3}
    return settings(train=train, fit=fit, tune=tune, model={"kind": "mlp", "hidden": [8]}, **changes)


def quality(method: str, federation: data.Federation, noise: Noise, seed: int) -> Quality:
    wanted = wanted_there()
    training = Training(wanted, federation, METHODS[method], noise, seed)
    state = training.begin()
    for after in training.run(state):
        state = after
    networks = training.networks(state)
    return judge(wanted, federation, METHODS[method], training.plan, networks, noise, seed).quality


@pytest.mark.parametrize("seed", [0, 1])
def test_the_noise_of_small_silos_does_not_spoil_what_they_share(seed: int) -> None:
    federation = small_silos(seed)
    fit = noise_event(4.0, sensitivity=1 << 15, shares=8, dimension=(12 + 4) * 9)
    noise = Noise(6.0, fit, math.nan, 20.0)
    found = {name: quality(name, federation, noise, seed) for name in ("feddrm", "feddrm-personal", "fedavg-shared")}
    ours, paper, one = (found[name] for name in ("feddrm", "feddrm-personal", "fedavg-shared"))
    assert ours.shared_head is not None
    assert paper.shared_head is not None
    # Heads that were a silo's own from the first round on are noise, and so is what the trunk learnt through them.
    assert ours.own_silo > paper.own_silo + 0.15
    assert ours.shared_head > paper.shared_head + 0.03
    assert ours.system > paper.system + 0.03
    # And what is routed gives away next to nothing to one model for all.
    assert ours.system > one.system - 0.01


def test_every_stage_is_charged_and_their_whole_is_within_epsilon() -> None:
    wanted = settings(delta=1e-5)
    method = METHODS["feddrm"]
    noise = noise_for(terms_of(wanted, RAND, method, 3.0))
    plan = plan_of(wanted, RAND, method, noise)
    # What the ledger of a hospital would charge for the very plan, by the deployment's own rule.
    assert charge(plan).epsilon == claim(noise.epsilon)
    assert 0.97 * 3 < noise.epsilon <= 3
    assert 0.19 * 3 < charge(plan, STAGE_PERSONAL).epsilon <= 0.2 * 3 + 1e-3
    # A method without stage 3 has the more for training.
    less = noise_for(terms_of(wanted, RAND, METHODS["feddrm-untuned"], 3.0))
    assert less.tuning is None
    assert less.training < noise.training


def test_stage_3_moves_heads_alone_and_from_that_of_all_silos() -> None:
    wanted = settings(tune={"steps": 1, "average_from": 1, "learning_rate": 1e-6})
    training = Training(wanted, RAND, METHODS["feddrm"], None, 0)
    networks = training.networks(training.begin())
    still = judge(wanted, RAND, METHODS["feddrm"], training.plan, networks, None, 0).quality
    # Hardly a step: every silo's own head is that of all, but for the norm of what it is applied to.
    assert still.shared_head is not None
    assert abs(still.random_silo - still.shared_head) < 0.03
    moved = settings(tune={"learning_rate": 2.0})
    plan = plan_of(moved, RAND, METHODS["feddrm"], None)
    after = judge(moved, RAND, METHODS["feddrm"], plan, networks, None, 0).quality
    assert after.shared_head == still.shared_head
    assert after.own_silo > still.own_silo


def test_the_plan_page_recommends_the_row_that_is_named_after_the_project() -> None:
    blocks = [block.split("```")[0] for block in PLAN_PAGE.read_text(encoding="utf-8").split("```toml\n")[1:]]
    whole = tomllib.loads(blocks[0])
    del whole["own_targets"]
    advice = next(tomllib.loads(block) for block in blocks if "personal = []" in block)
    for section, keys in advice.items():
        whole[section] |= keys
    said, row = Plan.model_validate(whole), plan_of(settings(), RAND, METHODS["feddrm"], None)
    assert said.personal == row.personal == frozenset()
    assert said.training.target_weight == row.training.target_weight
    assert said.shared_classes
    assert said.personal_head is not None
    assert row.personal_head is not None
    for key in advice["personal_head"].keys() - {"learning_rate"}:
        assert getattr(said.personal_head, key) == getattr(row.personal_head, key), key


def test_its_steps_are_in_the_row() -> None:
    wanted = settings()
    training = Training(wanted, RAND, METHODS["feddrm"], None, 0)
    networks = training.networks(training.begin())
    judged = {
        name: judge(wanted, RAND, METHODS[name], plan_of(wanted, RAND, METHODS[name], None), networks, None, 0)
        for name in ("feddrm", "feddrm-untuned")
    }
    assert judged["feddrm"].steps == 6 * wanted.tune.steps
    assert judged["feddrm-untuned"].steps == 0
    assert judged["feddrm"].bytes == judged["feddrm-untuned"].bytes


def test_a_default_plan_trains_what_fedavg_trains() -> None:
    wanted = settings(methods=["fedavg", "feddrm", "feddrm-untuned"], epsilons=[math.inf, 3.0])
    together = [[cell.method for cell in job.cells] for job in cells.jobs(wanted)]
    # Without noise its heads are personal; with it every row has its own, by what its later stages leave of epsilon.
    assert together == [["fedavg", "feddrm-untuned"], ["feddrm"], ["fedavg"], ["feddrm"], ["feddrm-untuned"]]
    ours, theirs = (plan_of(wanted, RAND, METHODS[name], None) for name in ("feddrm", "fedavg"))
    assert ours.training == theirs.training
    assert ours.model == theirs.model


def test_without_noise_heads_are_personal_from_the_first_round() -> None:
    private, plain = (METHODS["feddrm"].at(epsilon) for epsilon in (3.0, math.inf))
    assert private.personal == ()
    assert plain.personal == METHODS["fedper"].personal
    wanted = settings(methods=["feddrm", "feddrm-one", "fedper", "fedavg"], epsilons=[math.inf, 3.0], seeds=[0])
    # Rows of one training: what they keep to themselves is the same.
    together = {
        tuple(cell.method for cell in job.cells) for job in cells.jobs(wanted) if math.isinf(job.cells[0].epsilon)
    }
    assert together == {("feddrm", "fedper"), ("feddrm-one", "fedavg")}
    assert METHODS["feddrm-one"].at(math.inf) == METHODS["feddrm-one"]
