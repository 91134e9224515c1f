"""Epsilon over time against the caps, as geometry for an inline SVG; the template draws it and adds no numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from privacy.summary import Moment

WIDTH: Final = 560
HEIGHT: Final = 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 14, 46
# A cap that is this many times above everything spent would press the curve onto the axis.
_FAR: Final = 4.0


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: `points` as SVG wants them, `kind` names its style, `label` says what it is."""

    kind: str
    label: str
    points: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis, `at` in the drawing's units, with a second line `below`."""

    at: float
    label: str
    below: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """All that is drawn. `description` says in words what the drawing shows; `beyond` are caps above its upper edge."""

    lines: tuple[Line, ...]
    horizontal: tuple[Tick, ...]
    vertical: tuple[Tick, ...]
    description: str
    beyond: tuple[str, ...]
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


def draw(moments: Sequence[Moment]) -> Chart | None:
    """The chart of one ledger; None where nothing was charged yet.

    Args:
        moments: as `privacy.summary.course` gives them.
    """
    if not moments:
        return None
    last = moments[-1]
    highest = max(max(m.spent, m.spent_alone, m.allocated, m.allocated_alone) for m in moments)
    caps = [cap for m in moments for cap in (m.cap, m.cap_alone)]
    near = [cap for cap in caps if cap <= _FAR * highest]
    top = max([highest, *near]) * 1.08 or 1.0
    first, span = moments[0].leaf, max(1, last.leaf - moments[0].leaf)

    def line(kind: str, label: str, values: Sequence[float], *, steps: bool = False) -> Line:
        points: list[tuple[float, float]] = []
        for moment, value in zip(moments, values, strict=True):
            x = _LEFT + (moment.leaf - first) / span * (WIDTH - _LEFT - _RIGHT)
            y = HEIGHT - _BOTTOM - min(value, top) / top * (HEIGHT - _TOP - _BOTTOM)
            if steps and points:
                points.append((x, points[-1][1]))
            points.append((x, y))
        if len(moments) == 1:
            points.append((WIDTH - _RIGHT, points[-1][1]))
        return Line(kind, label, " ".join(f"{x:.1f},{y:.1f}" for x, y in points))

    same = all(m.spent == m.spent_alone for m in moments)
    lines = [line("allocated", "set aside for accepted jobs", [m.allocated for m in moments], steps=True)]
    if not same:
        lines.append(line("alone", "spent, if secure aggregation were broken", [m.spent_alone for m in moments]))
    lines.append(
        line("spent", "spent" + (", with or without secure aggregation" if same else ""), [m.spent for m in moments])
    )
    beyond = []
    for kind, label, values in (
        ("cap", "the hospital's cap for life", [m.cap for m in moments]),
        ("cap-alone", "its cap if secure aggregation were broken", [m.cap_alone for m in moments]),
    ):
        if kind == "cap-alone" and all(m.cap == m.cap_alone for m in moments):
            continue
        if max(values) > top:
            beyond.append(f"{label}, {last.cap if kind == 'cap' else last.cap_alone:g}, lies above the drawing")
        else:
            lines.append(line(kind, label, values, steps=True))
    words = (
        f"Epsilon rises from {moments[0].spent:.3f} to {last.spent:.3f}"
        + ("" if same else f" ({last.spent_alone:.3f} if secure aggregation were broken)")
        + f"; {last.allocated:.3f} is set aside for accepted jobs; the cap for life is {last.cap:g}."
    )
    return Chart(tuple(lines), _across(moments, first, span), _up(top), words, tuple(beyond))


def _across(moments: Sequence[Moment], first: int, span: int) -> tuple[Tick, ...]:
    middle = min(moments, key=lambda moment: abs(moment.leaf - first - span / 2))
    shown = {moment.leaf: moment for moment in (moments[0], moments[-1])}
    if 0.35 < (middle.leaf - first) / span < 0.65:
        shown[middle.leaf] = middle
    return tuple(
        Tick(
            round(_LEFT + (leaf - first) / span * (WIDTH - _LEFT - _RIGHT), 1),
            f"leaf {leaf}",
            f"{moment.time[:10]}, {moment.time[11:13]} h",
        )
        for leaf, moment in sorted(shown.items())
    )


def _up(top: float) -> tuple[Tick, ...]:
    rough = top / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough)
    return tuple(
        Tick(round(HEIGHT - _BOTTOM - n * step / top * (HEIGHT - _TOP - _BOTTOM), 1), f"{n * step:g}")
        for n in range(int(top / step) + 1)
    )
