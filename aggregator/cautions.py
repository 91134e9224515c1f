"""What in a plan runs, but should not be signed without a second thought."""

from __future__ import annotations

import math
from typing import Final

from feddrm.contract.plan import Plan
from feddrm.method.coarse import query_bits, record_bits
from feddrm.method.layout import layout_of
from privacy.accounting import OVER_EVERY_CAP
from secagg.session import vector_size

# A search solves records of 19 columns for embeddings of some hundred bits; 33 bits name one person among all.
_MANY_BITS: Final = 64
# What a hospital's ordinary line carries upwards, and bytes sent over bytes of a vector: measured 1.01, and some room.
_SLOW_LINE_MBIT: Final = 10.0
_FRAMED: Final = 1.1
# Between equal weights for two always, worse than one alone on CIFAR-10, and 0.7, better.
_CLEARLY_SECOND: Final = 0.5
# Beyond it the guarantee rules out little; local/policy.toml's own words for it are the same.
_WEAK_EPSILON: Final = 10.0


def cautions(plan: Plan, absent: int, epsilon: float, epsilon_alone: float) -> tuple[str, ...]:
    """What a person should weigh before signing.

    Args:
        absent: how many silos may be absent.
        epsilon: what the whole job costs each patient.
        epsilon_alone: the same should secure aggregation be broken.
    """
    found = []
    if epsilon_alone >= OVER_EVERY_CAP:
        found.append(
            "no epsilon can be stated, with or without secure aggregation (1e9 stands for it, and every hospital"
            " refuses it): above some 35, the little by which drawn discrete noise differs from its law weighs more"
            " than delta. Add noise."
            if epsilon >= OVER_EVERY_CAP
            else "without secure aggregation no epsilon can be stated (1e9 stands for it, and every hospital refuses"
            " it): above some 35, the little by which drawn discrete noise differs from its law weighs more than delta."
            ' Add noise, or take noise = "local".'
        )
    elif not epsilon <= _WEAK_EPSILON:
        found.append(
            f"epsilon {epsilon:.3f} is weak protection: whoever sees the release may become up to {_odds(epsilon)} "
            "times surer that a certain patient's records are in it (about 1 is strong, about 3 moderate)."
        )
    if absent == 0:
        found.append(f"with threshold {plan.secure_aggregation.threshold} one absent hospital stops the whole job.")
    if plan.training.rounds == 0 and plan.routing_fit is None:
        found.append("no rounds: the release is the initial model, which has seen no patient.")
    if plan.model.kind == "linear":
        found.append(
            "a linear model has no trunk: queries show the coordinator features, coarse but unmixed, so that its"
            " release needs the signature of every silo, each of which allows queries.linear."
        )
    line = line_mbit(plan)
    if line > _SLOW_LINE_MBIT:
        found.append(
            f"a hospital whose line carries less than {line:.1f} Mbit/s upwards cannot send its"
            f" {vector_size(layout_of(plan).shared_size, 0) / 1e6:.0f} MB within step_seconds ="
            f" {plan.deadlines.step_seconds:g} and is left out of every round; with"
            f" {math.ceil(plan.deadlines.step_seconds * line / _SLOW_LINE_MBIT)} one of {_SLOW_LINE_MBIT:g} Mbit/s can."
        )
    if plan.queries.second_opinion < _CLEARLY_SECOND:
        found.append(
            f"queries.second_opinion {plan.queries.second_opinion:g} asks hospitals that are clearly second, too: more"
            " patients are shown to two, whose mean may be worse than the first one's answer; take about 0.7."
        )
    bits = query_bits(plan)
    if bits > min(_MANY_BITS, record_bits(plan.schema_)):
        found.append(
            f"a query shows the coordinator {bits} bits, which may be solved for the patient; lower "
            "queries.embedding_bits or the width of the last layer."
        )
    return tuple(found)


def line_mbit(plan: Plan) -> float:
    """The slowest line, in Mbit/s, over which a masked input arrives within its step; TLS and HTTP/2 take a share."""
    bits = 8 * vector_size(layout_of(plan).shared_size, 0) * _FRAMED
    return bits / plan.deadlines.step_seconds / 1e6


def _odds(epsilon: float) -> str:
    """By how much epsilon allows the odds to change, e to the epsilon, as people read it."""
    if epsilon > math.log(1e15):
        return "a million billion or more"
    return f"{float(f'{math.exp(epsilon):.1e}'):,.0f}"
