"""What a comparison found: rows for programs, a table for a terminal, one self-contained page for people."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from feddrm.cli import table
from feddrm.compare import cells, charts
from feddrm.compare.charts import Chart, Series, Value
from feddrm.compare.methods import METHODS
from feddrm.compare.settings import Settings
from feddrm.compare.store import Store
from feddrm.contract.files import atomic_write

Row = dict[str, Any]

RIVALS: Final = ("ensemble", "vote", "averaged_head")
_FIGURES: Final = (
    "system",
    "asked",
    "one_silo",
    "routing",
    *RIVALS,
    "shared_head",
    "own_silo",
    "random_silo",
    "worst_silo",
)
_TITLES: Final = {
    "system": "system",
    "asked": "silos asked",
    "one_silo": "one silo",
    "routing": "routing",
    "ensemble": "ensemble",
    "vote": "vote",
    "averaged_head": "averaged head",
    "shared_head": "shared head",
    "own_silo": "own silo",
    "random_silo": "random silo",
    "worst_silo": "worst silo",
}
# "asking all": the best of RIVALS.
_IN_TEXT: Final = {
    "system": "system",
    "asked": "silos asked",
    "routing": "routing",
    "asking_all": "asking all",
    "own_silo": "own silo",
    "worst_silo": "worst silo",
}
# Of an SVG file's legend.
_IN_ROW: Final = 4
_LEGEND_WIDTH: Final = 145
_LEGEND_LINE: Final = 20
_LISTS: Final = ("silo_system", "silo_own")


def rows(settings: Settings, store: Store) -> list[Row]:
    """All finished rows, in the order of the settings."""
    found = (store.row(cell.name) for job in cells.jobs(settings) for cell in job.cells)
    order = {name: place for place, name in enumerate(settings.methods)}
    finished = [row for row in found if row is not None]
    return sorted(
        finished, key=lambda row: (row["silos"], -_epsilon(row["epsilon"]), order[row["method"]], row["seed"])
    )


def write(settings: Settings, found: Sequence[Row], notes: Sequence[str], folder: Path) -> None:
    """rows.json, rows.csv and report.html."""
    atomic_write(folder / "rows.json", json.dumps({"notes": list(notes), "rows": list(found)}, indent=1).encode())
    atomic_write(folder / "rows.csv", csv_text(found).encode())
    atomic_write(folder / "report.html", page(settings, found, notes).encode())


def csv_text(found: Sequence[Row]) -> str:
    """One line a row; an infinite epsilon is `inf`, what a method does not have is empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    keys = [key for key in (found[0] if found else {}) if key not in _LISTS]
    writer.writerow(keys)
    for row in found:
        writer.writerow(["inf" if key == "epsilon" and row[key] is None else row[key] for key in keys])
    return buffer.getvalue()


def text(found: Sequence[Row]) -> str:
    """What a terminal has room for, a table for each federation: medians over seeds, ranges in brackets."""
    blocks = []
    for (silos, epsilon), members in _groups(found, lambda row: (row["silos"], row["epsilon"])):
        privacy = "no privacy" if epsilon is None else f"epsilon {epsilon:g}"
        seeds = len({row["seed"] for row in members})
        lines = []
        for method, rows_ in _groups(members, lambda row: row["method"]):
            own = [{**row, "asking_all": max(row[key] for key in RIVALS)} for row in rows_]
            lines.append([method, *(_words(own, key).replace("0.", ".") for key in _IN_TEXT)])
        title = f"{silos} silos, {privacy}, {seeds} seed{'' if seeds == 1 else 's'}"
        blocks.append(f"{title}\n\n{table(['method', *_IN_TEXT.values()], lines)}")
    return "\n\n".join(blocks)


def page(settings: Settings, found: Sequence[Row], notes: Sequence[str]) -> str:
    """report.html: nothing in it is loaded from elsewhere."""
    blocks = []
    for (silos, epsilon), members in _groups(found, lambda row: (row["silos"], row["epsilon"])):
        summary = [
            (method, [_words(list(own), key) for key in _FIGURES], _cost(list(own)))
            for method, own in _groups(members, lambda row: row["method"])
        ]
        blocks.append((silos, epsilon, summary, _rivals(members)))
    return _template("report.html").render(
        settings=settings,
        notes=notes,
        titles=list(_TITLES.values()),
        blocks=blocks,
        charts=list(_charts(settings, found).values()),
        methods=[METHODS[name] for name in settings.methods],
        seeds=len({row["seed"] for row in found}),
    )


def figures(settings: Settings, found: Sequence[Row]) -> dict[str, str]:
    """The page's curves as SVG files by name; each loads nothing."""
    drawn = {}
    for about, chart in _charts(settings, found).items():
        places = [
            (chart.left + place % _IN_ROW * _LEGEND_WIDTH, chart.height + 12 + place // _IN_ROW * _LEGEND_LINE, curve)
            for place, curve in enumerate(chart.curves)
        ]
        height = places[-1][1] + _LEGEND_LINE
        text = _template("chart.svg").render(chart=chart, legend=places, height=height)
        drawn[f"{settings.name}-{about}.svg"] = text.strip() + "\n"
    return drawn


def _template(name: str) -> Template:
    folder = resources.files("feddrm.compare") / "templates"
    loader = FunctionLoader(lambda part: (folder / part).read_text(encoding="utf-8"))
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=True
    )
    return environment.get_template(name)


def _charts(settings: Settings, found: Sequence[Row]) -> dict[str, Chart]:
    """By a short name each."""
    epsilons = sorted({_epsilon(row["epsilon"]) for row in found}, reverse=True)
    silos = sorted({row["silos"] for row in found})
    names = [name for name in settings.methods if any(row["method"] == name for row in found)]

    def of(name: str, count: int, epsilon: float, key: str) -> Value | None:
        return _value(
            [
                row[key]
                for row in found
                if row["method"] == name and row["silos"] == count and _epsilon(row["epsilon"]) == epsilon
            ]
        )

    drawn = {}
    for count in silos if len(epsilons) > 1 else []:
        series = [Series(name, tuple(of(name, count, epsilon, "system") for epsilon in epsilons)) for name in names]
        places = [f"{epsilon:g}" for epsilon in epsilons]
        title = f"Where privacy costs accuracy ({count} silos)"
        drawn[f"epsilon-{count}"] = charts.curves(title, "epsilon", places, series)
    for epsilon in epsilons if len(silos) > 1 else []:
        for key, title in (("system", "The system"), ("worst_silo", "The worst silo")):
            series = [Series(name, tuple(of(name, count, epsilon, key) for count in silos)) for name in names]
            about = f"{title} by the number of silos (epsilon {epsilon:g})"
            places = [str(count) for count in silos]
            drawn[f"{key}-{epsilon:g}".replace("_", "-")] = charts.curves(about, "silos", places, series)
    return drawn


def _rivals(members: Sequence[Row]) -> Chart:
    names = [method for method, _ in _groups(members, lambda row: row["method"])]
    series = [
        Series(
            _TITLES[key],
            tuple(_value([row[key] for row in members if row["method"] == name]) for name in names),
        )
        for key in ("system", *RIVALS, "own_silo")
    ]
    return charts.rows("A query from outside: the system, and those who ask everybody", names, series)


def _value(values: Sequence[float]) -> Value | None:
    return Value(statistics.median(values), min(values), max(values)) if values else None


def _words(members: Sequence[Row], key: str) -> str:
    values = [row[key] for row in members if row.get(key) is not None]
    if not values:
        return "-"
    places = 2 if key == "asked" else 3
    middle, low, high = (f"{value:.{places}f}" for value in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def _cost(members: Sequence[Row]) -> str:
    megabytes = statistics.median(row["bytes"] for row in members) / 1e6
    return f"{megabytes:.1f} MB, {statistics.median(row['steps'] for row in members):.0f} steps"


def _groups(found: Sequence[Row], key: Callable[[Row], Any]) -> list[tuple[Any, list[Row]]]:
    groups: dict[Any, list[Row]] = {}
    for row in found:
        groups.setdefault(key(row), []).append(row)
    return list(groups.items())


def _epsilon(value: float | None) -> float:
    return math.inf if value is None else value
