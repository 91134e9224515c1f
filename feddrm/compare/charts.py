"""Curves and dots as geometry for inline SVG; the template draws them and adds no numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 640
HEIGHT: Final = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 42
_ROW: Final = 26
# From one mark of a place to the next: far enough that whiskers and shapes can be told apart.
_APART: Final = 3.0
_APART_IN_ROW: Final = 4.0
# What a mark and its whisker reach beyond their middle.
_REACH: Final = 6.0


@dataclass(frozen=True, slots=True)
class Value:
    """A median over seeds with the range around it."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: a name and a value at each place, None where there is none."""

    name: str
    values: tuple[Value | None, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A dot with its whisker, in the drawing's units, and what it says when pointed at."""

    x: float
    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """`number` chooses colour and shape."""

    number: int
    name: str
    points: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """All that is drawn; `across` and `upwards` name the axes, `description` says it in words."""

    title: str
    across: str
    upwards: str
    curves: tuple[Curve, ...]
    horizontal: tuple[Tick, ...]
    vertical: tuple[Tick, ...]
    description: str
    width: int = WIDTH
    height: int = HEIGHT
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM


def curves(title: str, across: str, places: Sequence[str], series: Sequence[Series]) -> Chart:
    """Shares in [0, 1] over named places, a curve each.

    Args:
        title: of the chart.
        across: what the places are.
        places: their labels, at equal distances.
        series: with as many values as there are places.

    Raises:
        ValueError: there is nothing to draw.
    """
    shown = [value for each in series for value in each.values if value is not None]
    if not shown or not places:
        raise ValueError("nothing to draw")
    bottom, top = bounds(min(value.low for value in shown), max(value.high for value in shown))
    # The outermost marks keep clear of the axis' labels.
    inset = _REACH + _APART * (len(series) - 1) / 2
    first = _LEFT + inset
    gap = (WIDTH - _LEFT - _RIGHT - 2 * inset) / max(len(places) - 1, 1)

    def up(value: float) -> float:
        return round(HEIGHT - _BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - _TOP - _BOTTOM), 1)

    drawn = []
    for number, each in enumerate(series):
        marks = tuple(
            Mark(
                round(first + place * gap + _APART * (number - (len(series) - 1) / 2), 1),
                up(value.middle),
                up(value.low),
                up(value.high),
                f"{each.name}, {places[place]}: {words(value)}",
            )
            for place, value in enumerate(each.values)
            if value is not None
        )
        drawn.append(Curve(number, each.name, " ".join(f"{mark.x},{mark.y}" for mark in marks), marks))
    described = "; ".join(
        f"{each.name} " + ", ".join("none" if value is None else f"{value.middle:.3f}" for value in each.values)
        for each in series
    )
    return Chart(
        title,
        across,
        "share answered right",
        tuple(drawn),
        tuple(Tick(round(first + place * gap, 1), label) for place, label in enumerate(places)),
        tuple(Tick(up(value), f"{value:.2f}") for value in steps(bottom, top)),
        f"{title} over {across} ({', '.join(places)}): {described}.",
    )


def rows(title: str, names: Sequence[str], series: Sequence[Series]) -> Chart:
    """Shares in [0, 1] as dots, a row for each name and a kind of dot for each series."""
    shown = [value for each in series for value in each.values if value is not None]
    if not shown or not names:
        raise ValueError("nothing to draw")
    low, high = bounds(min(value.low for value in shown), max(value.high for value in shown))
    left, height = 130, _TOP + _BOTTOM + _ROW * len(names)

    def along(value: float) -> float:
        return round(left + (value - low) / (high - low) * (WIDTH - left - _RIGHT), 1)

    drawn = []
    for number, each in enumerate(series):
        marks = tuple(
            Mark(
                along(value.middle),
                round(_TOP + _ROW * (place + 0.5) + _APART_IN_ROW * (number - (len(series) - 1) / 2), 1),
                along(value.low),
                along(value.high),
                f"{names[place]}, {each.name}: {words(value)}",
            )
            for place, value in enumerate(each.values)
            if value is not None
        )
        drawn.append(Curve(number, each.name, "", marks))
    described = "; ".join(
        f"{name}: "
        + ", ".join(f"{each.name} {value.middle:.3f}" for each in series if (value := each.values[place]) is not None)
        for place, name in enumerate(names)
    )
    return Chart(
        title,
        "share answered right",
        "",
        tuple(drawn),
        tuple(Tick(along(value), f"{value:.2f}") for value in steps(low, high)),
        tuple(Tick(_TOP + _ROW * (place + 0.5), name) for place, name in enumerate(names)),
        f"{title}. {described}.",
        height=height,
        left=left,
        bottom=height - _BOTTOM,
    )


def words(value: Value) -> str:
    """The median, and the range where there is one."""
    if value.low == value.high:
        return f"{value.middle:.3f}"
    return f"{value.middle:.3f} ({value.low:.3f} to {value.high:.3f})"


def bounds(low: float, high: float) -> tuple[float, float]:
    """A little more than the range, in multiples of 0.05, within [0, 1]."""
    below = math.floor(low / 0.05 - 0.1) * 0.05
    above = math.ceil(high / 0.05 + 0.1) * 0.05
    return max(below, 0.0), min(max(above, below + 0.05), 1.0)


def steps(low: float, high: float) -> list[float]:
    """Some five round values from `low` to `high`."""
    step = next(size for size in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if (high - low) / size <= 6)
    first = math.ceil(low / step - 1e-9)
    return [round(step * number, 4) for number in range(first, math.floor(high / step + 1e-9) + 1)]
