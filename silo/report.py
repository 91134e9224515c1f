"""`feddrm-silo status`: what the agent noted, readable beside a running agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from feddrm.contract.authority import certificate_hash
from feddrm.contract.documents import parse_body
from feddrm.contract.errors import InputError, VerificationError, in_shell
from feddrm.contract.files import load_document
from feddrm.contract.fingerprint import member_fingerprint
from feddrm.contract.home import SiloHome, load_silo_home
from feddrm.contract.identity import Role
from feddrm.contract.plan import Plan
from feddrm.contract.policy import POLICY_FILE, Policy
from feddrm.contract.schedule import describe
from privacy.accounting import claim
from privacy.errors import LedgerError
from privacy.gate import Gate
from privacy.ledger import Ledger
from silo.begun import refuse_vanished
from silo.books import caps_of, origin_of
from silo.context import Work, rounds_of_job
from silo.database import LEDGER_REMEDY
from silo.home import Home, running
from silo.permission import unserved
from silo.state import Job, State


def status_of(directory: Path) -> dict[str, Any]:
    """Everything as plain data: silo, federation, fingerprint, running, process, connected, restart, roster, job,
    declined, notice, queries, policy, budget, release.

    Raises:
        InputError: not a silo's directory, or not joined.
        VerificationError: the ledger is gone or does not verify.
    """
    home = Home(directory)
    member = load_silo_home(directory)
    pending = member.pin.pending()
    process = running(home)
    policy, problem = _policy(home)
    document: dict[str, Any] = {
        "silo": member.name,
        "federation": member.federation,
        "fingerprint": member_fingerprint(Role.SILO, member.name, member.keys.identity_public),
        "directory": str(directory),
        "running": process is not None,
        "process": process,
        "connected": False,
        "restart": [],
        "roster": {
            "version": member.roster.version,
            "in_use": member.roster.version,
            "waits_for_approval": pending[1].version if pending else None,
        },
        "job": None,
        "declined": None,
        "notice": None,
        "queries": {
            "served": policy is not None and policy.queries.serve,
            "problem": unserved(lambda: read(home), None),
        },
        "policy": problem or None,
        "budget": None,
        "release": None,
    }
    if not home.database.exists():
        refuse_vanished(home, None)
        return document
    state = State.read(home.database)
    try:
        refuse_vanished(home, state)
        job, release = state.last_job(), state.last_release()
        document["connected"] = process is not None and state.noted("connected") is True
        document["declined"] = state.noted("declined")
        if process is not None:
            document["notice"] = state.noted("notice")
            document["roster"]["in_use"] = state.noted("roster") or member.roster.version
            document["restart"] = outdated(home, member, state)
        document["budget"] = _budget(home, member, job, policy)
        document["release"] = None if release is None else release.hex()[:16]
        if release is not None:
            document["queries"]["problem"] = unserved(lambda: read(home), _released(state, release))
        if job is not None:
            work = Work.of(job.signed.body)
            plan, rounds = work.plan, rounds_of_job(state, work, job)
            document["job"] = {
                "plan": job.plan.hex(),
                "name": plan.name,
                "round": job.round,
                "rounds": rounds,
                "doing": describe(plan, min(job.round + 1, rounds)) if rounds else "",
                "state": job.ended or "active",
            }
    finally:
        state.close()
    return document


def started(home: Home, member: SiloHome, state: State) -> None:
    """Note what an agent that starts reads once and never again, so that `status` can say when it is outdated."""
    state.note("notice", None)
    state.note("certificate", certificate_hash(member.certificate).hex())
    state.note("settings", home.settings().model_dump())


def outdated(home: Home, member: SiloHome, state: State) -> list[str]:
    """Why the agent that runs should be restarted; what is not here it takes up by itself."""
    found = []
    if state.noted("certificate") not in (None, certificate_hash(member.certificate).hex()):
        found.append("it uses the certificate of before the last join")
    try:
        settings = home.settings().model_dump()
    except InputError as error:
        found.append(f"local/agent.toml cannot be read any more: {error}")
    else:
        if state.noted("settings") not in (None, settings):
            found.append("local/agent.toml was changed since it was started")
    return found


def read(home: Home) -> Policy:
    """local/policy.toml now.

    Raises:
        InputError: missing or malformed.
    """
    return load_document(home.local / POLICY_FILE, Policy)


def _released(state: State, release: bytes) -> Plan | None:
    name = state.release_plan(release)
    job = None if name is None else state.job(name)
    return None if job is None else parse_body(job.signed.body, Plan, what="The plan")


def _policy(home: Home) -> tuple[Policy | None, str]:
    try:
        return read(home), ""
    except InputError as error:
        return None, str(error)


def _budget(home: Home, member: SiloHome, job: Job | None, policy: Policy | None) -> dict[str, Any] | None:
    """What the ledger says is spent: epsilon of the newest job and for life, each with the policy's cap (none while
    the policy cannot be read)."""
    if not home.ledger.exists():
        return None
    try:
        ledger = Ledger.read(home.ledger, origin_of(member.federation, member.name), member.keys.identity_public)
    except LedgerError as error:
        raise VerificationError(f"The ledger cannot be relied on: {error}.", remedy=LEDGER_REMEDY) from error
    gate = Gate(ledger, caps_of(policy or Policy()))
    life = gate.spent_for_life()
    return {
        "job_epsilon": None if job is None else claim(gate.spent(job.plan).pld),
        "job_cap": None if policy is None else policy.budget.job_epsilon,
        "life_epsilon": life.epsilon,
        "life_delta": life.delta,
        "life_cap": None if policy is None else policy.budget.life_epsilon,
    }


def as_text(document: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"{document['silo']} in federation {document['federation']}, fingerprint {document['fingerprint']}"]
    if not document["running"]:
        lines.append(f"agent:    not running. Start it: feddrm-silo serve {in_shell(document['directory'])}")
    else:
        connected = "connected" if document["connected"] else "not connected"
        lines.append(f"agent:    process {document['process']}, {connected}")
    lines += [f"restart:  stop the agent and start it again: {reason}" for reason in document["restart"]]
    lines += _roster_lines(document["roster"], document["directory"])
    job = document["job"]
    if job:
        doing = f", next {job['doing']}" if job["state"] == "active" and job["round"] < job["rounds"] else ""
        lines.append(f"job:      {job['name']}, round {job['round']} of {job['rounds']}, {job['state']}{doing}")
    declined = document["declined"]
    if declined:
        lines.append(f"declined: {declined['detail']} ({declined['reason']})")
    if document["notice"]:
        lines.append(f"notice:   the coordinator says: {document['notice']}")
    if document["policy"]:
        lines.append(f"policy:   nothing is allowed while it cannot be read: {document['policy']}")
    problem = document["queries"]["problem"]
    lines.append(f"queries:  {'answered' if not problem else f'not answered: {problem}'}")
    budget = document["budget"]
    if budget:
        cap = "a cap that cannot be read" if budget["life_cap"] is None else f"{budget['life_cap']:g}"
        lines.append(
            f"budget:   epsilon {budget['life_epsilon']:.3f} of {cap} for life"
            + ("" if budget["job_epsilon"] is None else f", {budget['job_epsilon']:.3f} spent by this job")
        )
    if document["release"]:
        lines.append(f"release:  {document['release']}")
    return "\n".join(lines)


def _roster_lines(roster: dict[str, Any], directory: str) -> list[str]:
    line = f"roster:   version {roster['version']}"
    if roster["in_use"] != roster["version"]:
        line += f"; the running job goes on with version {roster['in_use']}, which its plan names"
    waiting = roster["waits_for_approval"]
    if not waiting:
        return [line]
    return [
        line,
        f"          version {waiting} waits for your approval. Look at it:"
        f"  feddrm-silo roster show --dir {in_shell(directory)}",
        f"          then, if you know all of its members:  feddrm-silo roster accept --dir {in_shell(directory)}",
    ]
