"""What a hospital accepts: local/policy.toml. A key that is missing denies (design section 5)."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from feddrm.contract.documents import Hash
from feddrm.contract.names import Document
from feddrm.contract.plan import Plan
from feddrm.contract.schedule import last_round
from feddrm.contract.sections import MAXIMUM_SILOS
from privacy.accounting import OVER_EVERY_CAP

POLICY_FILE: Final = "policy.toml"

Epsilon = Annotated[float, Field(ge=0, lt=1e6)]
Delta = Annotated[float, Field(ge=0, lt=1)]


class Budget(Document):
    """Caps on what patients may be charged. Each epsilon is compared with a figure that the silo computes itself.

    `..._alone` caps the epsilon that would hold if this silo's vectors were seen unmasked.
    """

    job_epsilon: Epsilon = 0.0
    job_epsilon_alone: Epsilon = 0.0
    job_delta: Delta = 0.0
    life_epsilon: Epsilon = 0.0
    life_epsilon_alone: Epsilon = 0.0
    life_delta: Delta = 0.0
    rounds_without_release: Annotated[int, Field(ge=0, le=100_000)] = 0


class Jobs(Document):
    """Which plans are acceptable."""

    operators: tuple[Hash, ...] = ()
    models: tuple[Annotated[str, Field(max_length=64)], ...] = ()
    smallest_cohort: Annotated[int, Field(ge=3)] = MAXIMUM_SILOS + 1
    colluders: Annotated[int, Field(ge=1)] = MAXIMUM_SILOS
    routing_fit: bool = False
    personal_head: bool = False
    evaluation: bool = False
    own_target: bool = False


class Queries(Document):
    """Whether this silo answers queries of enrolled queriers with its local model.

    `linear` agrees to releases of linear models, whose queries show the coordinator features instead of an embedding.
    """

    serve: bool = False
    linear: bool = False


class Policy(Document):
    """The whole file."""

    budget: Budget = Budget()
    jobs: Jobs = Jobs()
    queries: Queries = Queries()


def _figure(epsilon: float) -> str:
    return f"{epsilon:g}" if epsilon < OVER_EVERY_CAP else "without a bound"


def objections(
    policy: Policy, plan: Plan, epsilon: float, epsilon_alone: float, *, operator: bytes, silo: str = ""
) -> tuple[str, ...]:
    """Why this policy refuses a plan; empty when it accepts.

    Args:
        epsilon, epsilon_alone: the job's charge at the plan's delta, computed here (feddrm.contract.charge).
        operator: the key whose signature on the plan was verified.
        silo: whose policy it is.

    Returns:
        phrases for the hospital's own log, each with the policy key; they do not leave the hospital.
    """
    budget, jobs, sums = policy.budget, policy.jobs, plan.secure_aggregation
    found: list[str] = []

    def require(accepted: bool, phrase: str) -> None:
        # `accepted` is a positive comparison, so that a NaN objects.
        if not accepted:
            found.append(phrase)

    require(operator in jobs.operators, f"operator key {operator.hex()} is not in jobs.operators")
    require(plan.model.kind in jobs.models, f'model "{plan.model.kind}" is not in jobs.models')
    for key, value in (("job_epsilon", epsilon), ("life_epsilon", epsilon)):
        require(
            value <= getattr(budget, key), f"epsilon {_figure(value)} exceeds budget.{key} = {getattr(budget, key):g}"
        )
    for key, value in (("job_epsilon_alone", epsilon_alone), ("life_epsilon_alone", epsilon_alone)):
        require(
            value <= getattr(budget, key),
            f"epsilon without secure aggregation {_figure(value)} exceeds budget.{key} = {getattr(budget, key):g}",
        )
    for key in ("job_delta", "life_delta"):
        limit = getattr(budget, key)
        require(plan.privacy.delta <= limit, f"delta {plan.privacy.delta:g} exceeds budget.{key} = {limit:g}")
    cohort = max(sums.threshold, sums.minimum_cohort)
    require(
        cohort >= jobs.smallest_cohort,
        f"sums over {cohort} silos are possible, fewer than jobs.smallest_cohort = {jobs.smallest_cohort}",
    )
    require(
        sums.colluders >= jobs.colluders,
        f"withstands {sums.colluders} colluding silos, fewer than jobs.colluders = {jobs.colluders}",
    )
    for key, section, what in (
        ("routing_fit", plan.routing_fit, "fits the routing head"),
        ("personal_head", plan.personal_head, "tunes personal heads"),
        ("evaluation", plan.evaluation, "publishes counts on held-out patients"),
    ):
        require(section is None or getattr(jobs, key), f"the plan {what}, and jobs.{key} is not true")
    own = (plan.own_targets or {}).get(silo)
    if own is not None:
        # Classes are whatever the operator wrote; a line break would forge a line of the hospital's log.
        classes = ", ".join("".join(c if c.isprintable() else "?" for c in name) for name in own.classes)
        what = f"this hospital's own model is to answer column {own.column} as {classes}"
        require(jobs.own_target, f"{what}, and jobs.own_target is not true")
    require(
        plan.model.kind != "linear" or policy.queries.linear,
        "queries of a linear model show the coordinator features, and queries.linear is not true",
    )
    require(not last_round(plan) or budget.rounds_without_release > 0, "budget.rounds_without_release allows no round")
    return tuple(found)


TEMPLATE: Final = """\
# What this hospital accepts. Nobody outside can change this file, and whatever it does not allow is refused.
# As written by `feddrm-silo init` it refuses every job: set the figures that your hospital has decided on.

[budget]
# Epsilon bounds what anybody can learn about one patient from all that leaves this hospital; smaller is stricter.
# About 1 is strong, about 3 moderate, above 10 weak. The agent computes a plan's epsilon itself before it answers.
job_epsilon = 0.0             # largest epsilon of one job
life_epsilon = 0.0            # largest sum over all jobs, ever
# The same, should secure aggregation fail and this hospital's own messages be seen:
job_epsilon_alone = 0.0
life_epsilon_alone = 0.0
# Delta bounds the chance that epsilon does not hold: well below 1 / (number of patients), such as 1e-5.
job_delta = 0.0
life_delta = 0.0
# How many rounds may be charged without a result being published (a coordinator that starts rounds and stops):
rounds_without_release = 0

[jobs]
# Public keys of operators whose plans are considered; `feddrm-silo join` prints your federation's.
operators = []
# Kinds of model: "mlp", "linear" (see also queries.linear), "lenet_gn", "resnet18_gn",
# "frozen" (whose extractor is a program: put its file here yourself, from whom you trust; see data.toml)
models = []
# Fewest hospitals whose updates may be added up (a sum over few tells more about each):
smallest_cohort = 3
# At least this many other hospitals may conspire with the coordinator without seeing this one's update:
colluders = 1
# What a plan may do beyond training, charged to the same budget. Fit the routing head by sums of many hospitals, and
# one target head for all of them if the plan says so, with the noise in shares (should secure aggregation fail,
# job_epsilon_alone is what counts):
routing_fit = false
# Tune this hospital's own model on its own records; the result stays here:
personal_head = false
# Publish noised counts on held-out patients:
evaluation = false
# Let the plan give this hospital's own model a target of its own (a column of its table, and the classes it answers):
own_target = false

[queries]
# Whether enrolled queriers get predictions of this hospital's own model:
serve = false
# Whether a linear model may be served, to whose queries the coordinator sees features instead of an embedding:
linear = false
"""

DATA_TEMPLATE: Final = """\
# Where the records are, and how many patients there are approximately.

# The table, relative to this directory or absolute:
# records = "records.csv"

# The column that says whose a record is. The patient is what privacy protects, so the hospital names the column: a plan
# with another one is declined before anything is read. One patient must have one spelling, since ids are compared as
# text, exactly, without the blanks around them: 007 and 7 are two patients.
# patient = "patient_id"

# Approximate number of patients, from a public fact (an annual report), never counted from the table itself:
# whoever sees the model's steps may learn it. It is fixed for this hospital's life at its first use.
# public_size = 1000

# The file of a public feature extractor, for plans with a "frozen" model. Loading it runs it as a program, so take it
# from whom you trust; the plan says which one it must be, by its SHA-256.
# extractor = "encoder.pt"
"""

AGENT_TEMPLATE: Final = """\
# Settings of the agent on this machine. Every key is optional; these are the defaults.

# torch_threads = 1        # threads for training; more than one makes several agents on one machine fight
# capacity = 8             # queries answered at once
# answers_per_day = 1000   # for each querier
# slot_seconds = 0.5       # after training, the next message leaves at the end of such a slot
"""
