"""The model card of a release: what it was trained on and how, what it costs patients, how good it is, and what it is
not for. Everything in it follows from the operator's signed plan, the statement that silos signed and, for the noise
in the sums, the coordinator's (feddrm.contract.card), so anybody who holds the three writes the same card.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined, Template

from feddrm.contract.charge import charge, round_event
from feddrm.contract.operator_messages import NamedFigure, NoiseFound
from feddrm.contract.plan import Plan
from feddrm.contract.release import Counts, Release, required_signatures
from feddrm.contract.schedule import NAMES, STAGE_EVALUATE
from feddrm.contract.schema import Binned, Categorical, Column, Numeric, Schema
from feddrm.method.coarse import query_bits
from feddrm.method.evaluation import Figures
from feddrm.method.noise_meter import noise_words
from privacy.events import DistributedDiscreteGaussian, LocalDiscreteGaussian

_TITLES = {
    "own_correct": "a patient's own hospital answers right",
    "routed_to_own": "a patient is routed to the own hospital",
    "both": "both",
}


def evaluate(plan: Plan, counts: Counts) -> Figures:
    """The evaluation's figures from its published sum. More silos than the plan counts on only add noise.

    Raises:
        ValueError: the plan has no evaluation.
    """
    event = round_event(plan, STAGE_EVALUATE)
    if not isinstance(event, DistributedDiscreteGaussian | LocalDiscreteGaussian):
        raise ValueError("the plan has no evaluation")
    return Figures.of(np.array(counts.total, np.int64), event.scale * math.sqrt(counts.silos))


def figures_of(plan: Plan, counts: Counts | None) -> tuple[NamedFigure, ...]:
    """The figures that the noise leaves, as `status` and the card name them."""
    if counts is None:
        return ()
    found = evaluate(plan, counts)
    return tuple(
        NamedFigure(title, figure.value, figure.std)
        for name, title in _TITLES.items()
        if (figure := getattr(found, name)).value is not None
    )


def render_card(release: Release, noise: NoiseFound | None = None) -> str:
    """The card in Markdown.

    Args:
        noise: what the coordinator found in the sums, on its own word (feddrm.contract.card).
    """
    plan, statement = release.plan.plan, release.statement
    whole = charge(plan)
    stages = [(name, charge(plan, number)) for number, name in NAMES.items() if round_event(plan, number) is not None]
    return _template().render(
        plan=plan,
        statement=statement,
        release=release,
        columns=_columns(plan.schema_),
        whole=whole,
        stages=stages,
        figures=figures_of(plan, statement.evaluation),
        query_bits=query_bits(plan),
        cohort=plan.smallest_cohort,
        noise=None if noise is None else noise_words(noise),
        required=required_signatures(plan),
    )


def _columns(schema: Schema) -> list[tuple[str, str]]:
    """(name, how it is read) of all that a record has."""
    image = schema.image
    if image is None:
        return [(column.name, _column(column)) for column in schema.columns]
    size = f"{image.channels} channels of {image.height} x {image.width} pixels"
    return [(image.name, f"{size}, {image.lower:g} to {image.upper:g}")]


def _column(column: Column) -> str:
    match column:
        case Numeric():
            return f"number, {column.lower:g} to {column.upper:g}"
        case Binned():
            return f"number, in {len(column.edges) + 1} bins from {column.edges[0]:g} to {column.edges[-1]:g}"
        case Categorical():
            return f"one of {len(column.categories)}: {', '.join(column.categories[:12])}" + (
                ", ..." if len(column.categories) > 12 else ""
            )


def _cell(text: Any) -> str:
    """A text within a Markdown table or sentence: column names and labels are the operator's, not ours."""
    return "".join("\\" + c if c in "\\`*_{}[]<>#|!" else c for c in str(text) if c.isprintable())


@cache
def _template() -> Template:
    # Markdown, not HTML: what the operator wrote is escaped by `cell`, which the template applies.
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701
    environment.filters["cell"] = _cell
    source = resources.files("feddrm.method") / "templates" / "card.md"
    return environment.from_string(source.read_text(encoding="utf-8"))
