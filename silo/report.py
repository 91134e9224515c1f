"""`feddrm-silo status`: what the agent noted, readable beside a running agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from feddrm.contract.documents import parse_body
from feddrm.contract.errors import VerificationError
from feddrm.contract.files import load_document
from feddrm.contract.home import SiloHome, load_silo_home
from feddrm.contract.plan import Plan
from feddrm.contract.policy import POLICY_FILE, Policy
from privacy.accounting import claim
from privacy.errors import LedgerError
from privacy.gate import Gate
from privacy.ledger import Ledger
from silo.books import caps_of, origin_of
from silo.database import LEDGER_REMEDY
from silo.home import Home, running
from silo.state import Job, State


def status_of(directory: Path) -> dict[str, Any]:
    """Everything as plain data: silo, federation, running, process, connected, roster, job, declined, budget, release.

    Raises:
        InputError: not a silo's directory, or not joined.
    """
    home = Home(directory)
    member = load_silo_home(directory)
    pending = member.pin.pending()
    process = running(home)
    document: dict[str, Any] = {
        "silo": member.name,
        "federation": member.federation,
        "running": process is not None,
        "process": process,
        "connected": False,
        "roster": {"version": member.roster.version, "waits_for_approval": pending[1].version if pending else None},
        "job": None,
        "declined": None,
        "budget": None,
        "release": None,
    }
    if not home.database.exists():
        return document
    state = State.read(home.database)
    try:
        job, release = state.last_job(), state.last_release()
        document["connected"] = process is not None and state.noted("connected") is True
        document["declined"] = state.noted("declined")
        document["budget"] = _budget(home, member, job)
        document["release"] = None if release is None else release.hex()[:16]
        if job is not None:
            plan = parse_body(job.signed.body, Plan, what="The plan")
            document["job"] = {
                "plan": job.plan.hex(),
                "name": plan.name,
                "round": job.round,
                "rounds": plan.training.rounds,
                "state": job.ended or "active",
            }
    finally:
        state.close()
    return document


def _budget(home: Home, member: SiloHome, job: Job | None) -> dict[str, Any] | None:
    """What the ledger says is spent: epsilon of the newest job and for life, each with the policy's cap."""
    if not home.ledger.exists():
        return None
    try:
        ledger = Ledger.read(home.ledger, origin_of(member.federation, member.name), member.keys.identity_public)
    except LedgerError as error:
        raise VerificationError(f"The ledger cannot be relied on: {error}.", remedy=LEDGER_REMEDY) from error
    policy = load_document(home.local / POLICY_FILE, Policy)
    gate = Gate(ledger, caps_of(policy))
    life = gate.spent_for_life()
    return {
        "job_epsilon": None if job is None else claim(gate.spent(job.plan).pld),
        "job_cap": policy.budget.job_epsilon,
        "life_epsilon": life.epsilon,
        "life_delta": life.delta,
        "life_cap": policy.budget.life_epsilon,
    }


def as_text(document: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"{document['silo']} in federation {document['federation']}"]
    if not document["running"]:
        lines.append("agent:    not running")
    else:
        connected = "connected" if document["connected"] else "not connected"
        lines.append(f"agent:    process {document['process']}, {connected}")
    roster = document["roster"]
    waiting = roster["waits_for_approval"]
    lines.append(
        f"roster:   version {roster['version']}" + (f"; version {waiting} waits for approval" if waiting else "")
    )
    job = document["job"]
    if job:
        lines.append(f"job:      {job['name']}, round {job['round']} of {job['rounds']}, {job['state']}")
    declined = document["declined"]
    if declined:
        lines.append(f"declined: {declined['detail']} ({declined['reason']})")
    budget = document["budget"]
    if budget:
        lines.append(
            f"budget:   epsilon {budget['life_epsilon']:.3f} of {budget['life_cap']:g} for life"
            + ("" if budget["job_epsilon"] is None else f", {budget['job_epsilon']:.3f} spent by this job")
        )
    if document["release"]:
        lines.append(f"release:  {document['release']}")
    return "\n".join(lines)
