"""Whether this hospital allows a job, asked anew before everything that a job does here (design 5).

local/policy.toml and local/data.toml are read again every time: a hospital that takes a permission back is obeyed at
the next round, and a file that cannot be read permits nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from feddrm.contract.charge import Charge, charge
from feddrm.contract.errors import FeddrmError
from feddrm.contract.plan import Plan
from feddrm.contract.policy import POLICY_FILE, Policy, objections
from silo.books import Books
from silo.context import Context, Work


def unserved(read_policy: Callable[[], Policy], plan: Plan | None) -> str:
    """Why this hospital answers no query now, or nothing; asked anew before every one. The phrase stays here.

    Args:
        read_policy: local/policy.toml as it is now; raises a FeddrmError when it cannot be relied on.
        plan: of the release that is asked about, if there is one.
    """
    try:
        policy = read_policy()
    except FeddrmError as error:
        return str(error)
    if not policy.queries.serve:
        return f"queries.serve in local/{POLICY_FILE} is not true"
    if plan is not None and plan.model.kind == "linear" and not policy.queries.linear:
        return f"queries.linear in local/{POLICY_FILE} is not true"
    return ""


class Permission:
    """The hospital's own conditions. Phrases it returns are for the hospital's log and never leave it."""

    def __init__(self, context: Context, books: Books) -> None:
        self._context = context
        self._books = books
        self._charge: tuple[bytes, Charge] | None = None

    def charge(self, work: Work) -> Charge:
        """What the plan costs; computed once for a plan, as it takes seconds."""
        if self._charge is None or self._charge[0] != work.plan_hash:
            self._charge = (work.plan_hash, charge(work.plan))
        return self._charge[1]

    def problem(self, work: Work, now_ms: int) -> str:
        """Why the job may not go on now, or nothing. Gives the gate the policy's caps."""
        try:
            self._context.roster.check_current(now_ms)
            policy = self._context.read_policy()
            data = self._context.read_data()
        except FeddrmError as error:
            return str(error)
        self._books.set_caps(policy)
        epsilon, alone = self._books.claimed(work.plan_hash) or self._figures(work)
        operator, me = self._context.roster.operator, self._context.me
        found = list(objections(policy, work.plan, epsilon, alone, operator=operator, silo=me))
        if work.plan.schema_.patient != data.patient:
            column = work.plan.schema_.patient
            found.append(f"the plan takes column {column} for the patient, local/data.toml says {data.patient}")
        fit = work.plan.routing_fit
        if fit is not None and fit.public_sizes.get(self._context.me) != data.public_size:
            found.append(
                f"the plan takes {fit.public_sizes.get(self._context.me)} for this silo's public size,"
                f" local/data.toml says {data.public_size}"
            )
        changed = self.changed(data.patient, data.public_size)
        return "; ".join([*found, changed] if changed else found)

    def changed(self, patient: str, public_size: int) -> str:
        """What of local/data.toml is no longer as the first use of the records fixed it, or nothing.

        The size divides every step of training, so a silo that could change it would choose its own weight, and one
        that follows the data would publish the data's size. Both are fixed by the ledger, which cannot be begun anew.
        """
        fixed = self._books.fixed()
        if fixed is not None and fixed.patient != patient:
            return f"patient in local/data.toml is {patient}, but it was fixed as {fixed.patient} for this silo's life"
        if fixed is not None and fixed.public_size != public_size:
            return (
                f"public_size in local/data.toml is {public_size}, but it was fixed as {fixed.public_size} for this"
                " silo's life"
            )
        return ""

    def _figures(self, work: Work) -> tuple[float, float]:
        cost = self.charge(work)
        return cost.epsilon, cost.epsilon_alone
