"""What a recovery takes as fixed for life: what somebody shows charged, and never what a plan only says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from recovery_world import Federation, begun, verdict
from silo_harness import plan_document
from test_silo_renewal import SILOS
from test_stages_with_coordinator import FIT

from aggregator.homes import load_operator_home
from feddrm.contract.errors import InputError
from feddrm.contract.plan import Plan
from feddrm.contract.signed_plan import SignedPlan, sign_plan
from feddrm.method.layout import initial_personal, layout_of
from feddrm.method.progress import initial_state


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Federation]:
    yield from begun(tmp_path)


def sign(world: Federation, name: str, size: int = 1000, column: str = "id") -> SignedPlan:
    """A plan with alpha's public size and the patient column as the operator has them."""
    document = plan_document(routing_fit=FIT | {"public_sizes": dict.fromkeys(SILOS, 1000) | {"alpha": size}})
    document |= {"silos": list(SILOS), "roster_version": 1, "name": name}
    document["schema"] |= {"patient": column}
    return sign_plan(Plan.model_validate(document), load_operator_home(world.operator).key)


def only_beta(world: Federation, work: SignedPlan) -> None:
    """alpha declined the plan; that beta took part makes beta's export bring it."""
    layout = layout_of(work.plan)
    state = initial_state(work.plan, layout, work.hash)
    world.beta.add_job(work.hash, work.signed, state, initial_personal(layout, work.hash))
    world.beta.end_job(work.hash, "done")


def lost(world: Federation) -> None:
    world.lose()
    world.rekey(lost=True)


def configure(world: Federation, old: str, new: str) -> None:
    data = world.path / "alpha" / "local" / "data.toml"
    data.write_text(data.read_text().replace(old, new))


def carried(world: Federation) -> dict[str, int]:
    leaves = [json.loads(leaf) for leaf in json.loads(world.export("alpha").read_text())["leaves"]]
    return {leaf["name"]: leaf["public_size"] for leaf in leaves if leaf["type"] == "CARRY"}


@pytest.mark.parametrize("own", [True, False], ids=["with an old export", "without"])
def test_an_operator_s_typo_in_a_plan_that_was_declined_fixes_no_public_size(
    world: Federation, capsys: pytest.CaptureFixture[str], own: bool
) -> None:
    fitted = sign(world, "fitted")
    world.witness(world.play("alpha", fitted, 1), fitted, 1)
    world.play("beta", fitted, 1)
    only_beta(world, sign(world, "typo", size=2000))
    files = [world.export("beta"), *([world.export("alpha", "before.ledger")] if own else [])]
    lost(world)
    configure(world, "1000", "2000")
    with pytest.raises(InputError, match="gives 2000 as the public size; in the lost ledger it was 1000"):
        world.recover(files)
    configure(world, "2000", "1000")
    world.recover(files)
    assert carried(world) == {"first": 1000, fitted.plan.name: 1000, "typo": 1000}, "charged all the same"
    code, found = verdict(world, capsys, world.export("alpha"), *files)
    assert found.get("FAIL") is None
    assert code == 0


def test_a_second_loss_is_not_held_against_a_size_that_only_a_carried_plan_names(world: Federation) -> None:
    only_beta(world, sign(world, "typo", size=2000))
    lost(world)
    world.recover([world.export("beta")])
    files = [world.export("alpha", "before.ledger"), world.export("beta")]
    lost(world)
    configure(world, "1000", "2000")
    with pytest.raises(InputError, match="it was 1000"):
        world.recover(files)
    configure(world, "2000", "1000")
    world.recover(files)
    assert carried(world) == {"first": 1000, "typo": 1000}


def test_a_plan_s_size_is_fixed_where_a_peer_saw_the_plan_charged(world: Federation) -> None:
    """No export of alpha's own, no DATASET leaf: the signed plan that beta saw alpha charge says it."""
    fitted = sign(world, "fitted")
    proof = world.play("alpha", fitted, 1)
    world.witness(proof, fitted, 1)
    only_beta(world, fitted)
    lost(world)
    configure(world, "1000", "2000")
    with pytest.raises(InputError, match="it was 1000"):
        world.recover([world.export("beta")])


def test_what_is_carried_at_one_size_is_not_joined_by_more_at_another(world: Federation) -> None:
    lost(world)
    world.recover([world.export("beta")])
    only_beta(world, sign(world, "later"))
    configure(world, "1000", "2000")
    with pytest.raises(InputError, match="it was 1000"):
        world.recover([world.export("beta")])


def test_a_declined_plan_of_another_column_is_left_out(world: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    """It cannot have been charged: a silo takes no plan of another column than the one that its records fixed."""
    only_beta(world, sign(world, "visits", column="visit"))
    lost(world)
    world.recover([world.export("beta")])
    assert carried(world) == {"first": 1000}
    code, found = verdict(world, capsys, world.export("alpha"), world.export("beta"))
    assert (code, found.get("FAIL")) == (0, None)


def test_jobs_that_somebody_saw_charged_are_carried_last(world: Federation) -> None:
    """A round's proof shows the last ones only: more declined plans than that must not hide the one that peers know."""
    for number in range(3):
        only_beta(world, sign(world, f"declined-{number}"))
    world.play("alpha", second := world.sign("second"), 1)
    files = [world.export("alpha", "before.ledger"), world.export("beta")]
    lost(world)
    done = world.recover(files)
    assert set(done.jobs[-2:]) == {"first", second.plan.name}
    assert len(done.jobs) == 5
