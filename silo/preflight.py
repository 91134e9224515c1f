"""What must be right before an agent can work, each failure with its remedy (`feddrm-silo preflight`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feddrm.contract.charge import charge
from feddrm.contract.errors import FeddrmError, InputError, MalformedError
from feddrm.contract.files import load_document, read_bounded
from feddrm.contract.home import SiloHome
from feddrm.contract.plan import Plan
from feddrm.contract.policy import POLICY_FILE, Policy, objections
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import verify_plan
from silo.data import check_records, records_path, with_features
from silo.home import Home

_CLOCK_TOLERANCE_MS: Final = 120_000


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the result. `detail` says what was found, or what is wrong; `remedy` what to do about it."""

    name: str
    passed: bool
    detail: str
    remedy: str = ""


def load_plan(path: Path, member: SiloHome) -> Plan:
    """A plan file as this silo computes by it: signed (checked against the pinned operator key), or TOML as an operator
    writes it.

    Raises:
        InputError, VerificationError, MalformedError: it is none.
    """
    if path.suffix == ".toml":
        return load_document(path, Plan).at(member.name)
    try:
        signed = Signed.from_json(read_bounded(path))
    except MalformedError as error:
        raise InputError(f"{path} is no plan.", remedy="Give a plan.toml or a signed plan.") from error
    return verify_plan(signed, federation=member.federation, operator=member.anchor.operator).plan.at(member.name)


def preflight(home: Home, member: SiloHome, plan: Plan | None, now_ms: int) -> tuple[Check, ...]:
    """Run all checks; none stops the others."""
    checks = [
        _run("certificate and roster", lambda: _current(member, now_ms)),
        _run("coordinator and clock", lambda: _coordinator(member, now_ms)),
        _run("policy", lambda: _policy(home, member, plan)),
        _run("settings", lambda: f"capacity {home.settings().capacity}, torch threads {home.settings().torch_threads}"),
        _run("data", lambda: _data(home, plan)),
    ]
    return tuple(checks)


def _run(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except FeddrmError as error:
        return Check(name, False, error.message, error.remedy)


def _current(member: SiloHome, now_ms: int) -> str:
    member.check_current(now_ms)
    days = (member.roster.expires_ms - now_ms) // 86_400_000
    return f"{member.name} in roster version {member.roster.version}, valid {days} days"


def _coordinator(member: SiloHome, now_ms: int) -> str:
    from silo.link import Link

    async def ask() -> int:
        async with Link(member.address, member.tls) as link:
            return (await link.hello()).time_ms

    skew = asyncio.run(ask()) - now_ms
    if abs(skew) > _CLOCK_TOLERANCE_MS:
        raise InputError(
            f"The coordinator at {member.address} answers, but the clocks differ by {abs(skew) // 1000} s.",
            remedy="Set this machine's clock (NTP).",
        )
    return f"{member.address} answers; clocks differ by {abs(skew) / 1000:.1f} s"


def _policy(home: Home, member: SiloHome, plan: Plan | None) -> str:
    path = home.local / POLICY_FILE
    policy = load_document(path, Policy)
    operator = member.anchor.operator
    if plan is None:
        if operator not in policy.jobs.operators:
            raise InputError(
                f"{path}: jobs.operators does not list this federation's operator.",
                remedy=f'Add "{operator.hex()}" to accept its plans.',
            )
        budget = policy.budget
        if not (budget.job_epsilon and budget.life_epsilon and policy.jobs.models):
            raise InputError(
                f"{path} refuses every job: budget.job_epsilon, budget.life_epsilon or jobs.models is still empty.",
                remedy="Set the figures that this hospital has decided on.",
            )
        return f"epsilon at most {budget.job_epsilon:g} a job and {budget.life_epsilon:g} for life"
    if plan.federation != member.federation or member.name not in plan.silos:
        raise InputError(f"The plan {plan.name} of federation {plan.federation} does not list {member.name}.")
    if plan.roster_version != member.roster.version:
        raise InputError(
            f"The plan is for roster version {plan.roster_version}; version {member.roster.version} is pinned here.",
            remedy="See `feddrm-silo roster show` and `roster accept`.",
        )
    cost = charge(plan)
    problems = objections(policy, plan, cost.epsilon, cost.epsilon_alone, operator=operator, silo=member.name)
    if problems:
        raise InputError(f"{path} refuses the plan: {'; '.join(problems)}.", remedy="Change it only if you decide to.")
    return f"accepts {plan.name}: epsilon {cost.epsilon:.3f} at delta {cost.delta:g}"


def _data(home: Home, plan: Plan | None) -> str:
    if plan is None:
        path = records_path(home)
        if not path.is_file():
            raise InputError(f"{path} does not exist.", remedy="Correct `records` in local/data.toml.")
        return f"{path} is there; add --plan to check it against a schema"
    patient = home.data_settings().patient
    if patient != plan.schema_.patient:
        raise InputError(
            f"The plan takes column {plan.schema_.patient} for the patient, local/data.toml says {patient}.",
            remedy="Decline the plan, unless data.toml is wrong: the patient is what privacy is promised to.",
        )
    dataset = with_features(home, plan, check_records(home, plan.schema_))
    return f"{len(dataset)} records of {len(set(dataset.patients))} patients fit the schema"
