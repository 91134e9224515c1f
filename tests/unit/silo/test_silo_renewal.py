"""What a hospital changes while its agent runs: when the agent begins anew, and by which roster it works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from silo_harness import plan_document

from aggregator.founding import found_federation
from aggregator.homes import load_operator_home
from aggregator.operations import enroll, read_requests, remove_members
from feddrm.contract.authority import Address
from feddrm.contract.errors import NotAuthorisedError
from feddrm.contract.home import init_member, join_member, load_silo_home
from feddrm.contract.identity import Role
from feddrm.contract.plan import Plan, plan_hash
from feddrm.contract.signed_plan import sign_plan
from feddrm.method.layout import initial_model, initial_personal, layout_of
from silo.home import Home
from silo.renewal import Renewal
from silo.state import State

NOW = 1_700_000_000_000
SILOS = ("alpha", "beta", "gamma")


class Hospital:
    """alpha's directory in a federation on disk, with the state database of a running agent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        anchor = found_federation(path / "fed", "trial", Address.parse("localhost:8002"), NOW)
        self.operator = path / "fed" / "operator"
        self.enrol(*SILOS)
        join_member(path / "alpha", path / "alpha" / "alpha.kit", anchor.fingerprint, Role.SILO, NOW)
        self.home = Home(path / "alpha")
        (path / "alpha" / "state").mkdir()
        self.state = State.open(self.home.database)

    def enrol(self, *names: str, role: Role = Role.SILO, where: str = "") -> None:
        requests = [init_member(self.path / f"{where}{name}", name, role).request for name in names]
        enroll(self.operator, read_requests(load_operator_home(self.operator), requests), None, NOW)

    def remove(self, name: str) -> None:
        remove_members(self.operator, [name], None, NOW)

    def renewal(self) -> Renewal:
        """Of an agent that starts now."""
        return Renewal(self.home, load_silo_home(self.home.root), self.state, lambda: NOW)

    def approve(self) -> int:
        """`roster accept` of the operator's newest roster."""
        pin = load_silo_home(self.home.root).pin
        pin.offer(load_operator_home(self.operator).signed_roster, NOW)
        waiting = pin.pending()
        assert waiting is not None
        return pin.accept(waiting[1].version, NOW).version

    def begin_job(self, roster_version: int) -> bytes:
        document = plan_document() | {"silos": list(SILOS), "roster_version": roster_version}
        plan = Plan.model_validate(document)
        signed = sign_plan(plan, load_operator_home(self.operator).key)
        layout, name = layout_of(plan), plan_hash(signed.signed.body)
        self.state.add_job(name, signed.signed, initial_model(layout, name), initial_personal(layout, name))
        return name


@pytest.fixture
def hospital(tmp_path: Path) -> Iterator[Hospital]:
    hospital = Hospital(tmp_path)
    yield hospital
    hospital.state.close()


def look(renewal: Renewal, *, refusing: bool = False) -> bool:
    """Two looks: a file must hold still for one before it is believed."""
    first = renewal.look(refusing=refusing)
    return renewal.look(refusing=refusing) or first


def test_an_idle_agent_takes_an_approved_roster_up_and_no_other(hospital: Hospital) -> None:
    renewal = hospital.renewal()
    assert renewal.take().roster.version == 2
    assert not look(renewal)
    hospital.enrol("clinic", role=Role.QUERIER)
    signed = load_operator_home(hospital.operator).signed_roster
    renewal.offered(signed)
    assert not look(renewal), "what the coordinator shows changes nothing"
    assert not renewal.due
    assert hospital.approve() == 3
    assert not renewal.look(refusing=False), "it may still be being written"
    assert renewal.look(refusing=False)
    assert renewal.due
    assert [member.name for member in renewal.roster.queriers] == ["clinic"]
    assert renewal.take().roster.version == 3
    assert hospital.state.noted("roster") == 3
    assert not renewal.due
    assert not look(renewal)


def test_a_job_goes_on_under_its_own_roster_over_restarts_while_queries_follow_the_new_one(hospital: Hospital) -> None:
    renewal = hospital.renewal()
    renewal.take()
    name = hospital.begin_job(2)
    hospital.enrol("clinic", role=Role.QUERIER)
    hospital.approve()
    assert look(renewal)
    assert not renewal.due
    assert [member.name for member in renewal.roster.queriers] == ["clinic"]
    again = hospital.renewal()
    assert again.take().roster.version == 2, "or the restart would end the job here"
    assert again.roster.version == 3
    assert not look(again)
    assert not again.due
    hospital.state.end_job(name, "completed")
    again.look(refusing=False)
    assert again.due
    assert again.take().roster.version == 3


@pytest.mark.parametrize("what", ["removed", "other keys"])
def test_a_job_whose_silo_is_no_longer_trusted_does_not_go_on(hospital: Hospital, what: str) -> None:
    renewal = hospital.renewal()
    renewal.take()
    hospital.begin_job(2)
    if what == "removed":
        hospital.remove("gamma")
    else:
        hospital.enrol("gamma", where="new-")
    hospital.approve()
    assert look(renewal)
    assert renewal.due
    assert renewal.take().roster.version == 3
    assert hospital.renewal().take().roster.version == 3


def test_a_job_of_a_roster_that_is_not_remembered_is_no_reason_to_trust_an_old_one(hospital: Hospital) -> None:
    hospital.renewal().take()
    hospital.begin_job(2)
    hospital.enrol("clinic", role=Role.QUERIER)
    hospital.approve()
    hospital.state.set_fact("roster in use", b"{}")
    assert hospital.renewal().take().roster.version == 3


def test_an_agent_that_its_own_hospital_took_off_the_roster_ends(hospital: Hospital) -> None:
    renewal = hospital.renewal()
    renewal.take()
    hospital.remove("alpha")
    hospital.approve()
    renewal.look(refusing=False)
    with pytest.raises(NotAuthorisedError, match="lists no silo named alpha"):
        renewal.look(refusing=False)


def test_a_damaged_roster_file_changes_nothing(hospital: Hospital) -> None:
    renewal = hospital.renewal()
    renewal.take()
    (hospital.home.root / "startup" / "roster.signed").write_text("half of")
    assert look(renewal)
    assert not renewal.due
    assert renewal.roster.version == 2


@pytest.mark.parametrize(
    ("file", "job", "refusing", "due"),
    [
        ("data.toml", True, False, True),
        ("data.toml", False, False, False),  # read at the next offer in any case
        ("data.toml", False, True, True),
        ("policy.toml", True, False, False),  # asked anew before every round in any case
        ("policy.toml", False, True, True),
        ("agent.toml", True, True, False),
        ("encoder.pt", True, True, True),
        ("encoder.pt", True, False, False),  # read at the job's beginning; what was extracted then is in memory
        ("records.csv", False, True, True),
        ("another.csv", False, True, False),
    ],
)
def test_local_files_are_looked_at_again_where_that_can_change_something(
    hospital: Hospital, file: str, job: bool, refusing: bool, due: bool
) -> None:
    settings = 'records = "records.csv"\npatient = "id"\npublic_size = 20\nextractor = "encoder.pt"\n'
    (hospital.home.local / "data.toml").write_text(settings)
    renewal = hospital.renewal()
    renewal.take()
    if job:
        hospital.begin_job(2)
    (hospital.home.local / file).write_text("# changed\n")
    look(renewal, refusing=refusing)
    assert renewal.due is due
