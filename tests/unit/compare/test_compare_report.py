"""Rows as table, CSV and page: every figure is there, nothing is loaded from elsewhere, markup stays text."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from compare_settings import settings

from feddrm.compare import charts, report
from feddrm.compare.charts import Series, Value


def row(method: str, epsilon: float | None, seed: int, system: float, silos: int = 6) -> dict[str, Any]:
    shares = dict.fromkeys(("own_silo", "random_silo", "ensemble", "vote", "averaged_head", "worst_silo"), 0.5)
    return {
        "method": method,
        "epsilon": epsilon,
        "silos": silos,
        "seed": seed,
        "system": system,
        "one_silo": system if method == "feddrm" else None,
        "routing": 0.25 if method == "feddrm" else None,
        **shares,
        "silo_variance": 0.01,
        "asked": 1.2,
        "silo_system": [0.5] * silos,
        "silo_own": [0.5] * silos,
        "bytes": 1_500_000,
        "steps": 30,
        "epsilon_spent": epsilon,
    }


ROWS = [
    row(method, epsilon, seed, base + seed / 100)
    for method, base in (("feddrm", 0.7), ("fedavgft", 0.6))
    for epsilon in (None, 3.0)
    for seed in (0, 1, 2)
]
WANTED = settings(methods=["feddrm", "fedavgft"], epsilons=[math.inf, 3.0], seeds=[0, 1, 2])


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))
        if tag not in ("meta", "line", "circle", "rect", "path", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(page)
    assert not parser.open
    return parser.seen


def test_medians_and_ranges_stand_in_the_table() -> None:
    blocks = report.text([*ROWS, row("feddrm", None, 0, 1.0, silos=20)]).split("\n\n")
    assert blocks[::2] == [
        "6 silos, no privacy, 3 seeds",
        "6 silos, epsilon 3, 3 seeds",
        "20 silos, no privacy, 1 seed",
    ]
    assert re.search(r"feddrm +\.710 \(\.700-\.720\) +1\.20 +\.250 +\.500 +\.500 +\.500", blocks[1])
    assert re.search(r"fedavgft +\.610 \(\.600-\.620\) +1\.20 +- ", blocks[3])
    assert re.search(r"feddrm +1\.000 ", blocks[5])
    assert max(map(len, "\n".join(blocks).splitlines())) < 100


def test_asking_all_is_the_best_way_to_ask_all_of_each_seed() -> None:
    rows = [{**row("fedavgft", None, seed, 0.6), key: 0.7 + seed / 100} for seed, key in enumerate(report.RIVALS)]
    assert ".710 (.700-.720)" in report.text(rows)


def test_csv_has_a_line_a_row_and_says_inf() -> None:
    lines = list(csv.DictReader(io.StringIO(report.csv_text(ROWS))))
    assert len(lines) == 12
    assert (lines[0]["epsilon"], lines[0]["routing"], lines[-1]["routing"]) == ("inf", "0.25", "")
    assert "silo_own" not in lines[0]


def test_the_page_is_whole_and_loads_nothing() -> None:
    page = report.page(WANTED, ROWS, [])
    found = tags(page)
    assert not {"script", "link", "img"} & {tag for tag, _ in found}
    assert not [attributes for _, attributes in found if {"src", "href"} & set(attributes)]
    assert "url(" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert sum(tag == "svg" and "aria-label" in attributes for tag, attributes in found) == 3
    assert "0.710 (0.700-0.720)" in page


def test_a_note_is_seen() -> None:
    assert "These results are not private: tuning" in report.page(WANTED, ROWS, ["not private: tuning"])


def test_silos_over_their_number_are_drawn() -> None:
    rows = [row("feddrm", 3.0, 0, 0.7, silos) for silos in (8, 20, 50)]
    page = report.page(settings(methods=["feddrm"], epsilons=[3.0]), rows, [])
    assert "The worst silo by the number of silos (epsilon 3)" in page


def test_plots_are_files_that_load_nothing() -> None:
    drawn = report.figures(WANTED, ROWS)
    assert set(drawn) == {"small-epsilon-6.svg"}
    picture = drawn["small-epsilon-6.svg"]
    found = tags(picture)
    assert found[0] == ("svg", {**found[0][1], "xmlns": "http://www.w3.org/2000/svg"})
    assert not [name for _, attributes in found for name in attributes if name.endswith(("href", "src"))]
    assert "feddrm, inf: 0.710 (0.700 to 0.720)" in picture
    assert "url(" not in picture
    rows = [row("feddrm", 3.0, 0, 0.7, silos) for silos in (8, 20, 50)]
    scale = report.figures(settings(methods=["feddrm"], epsilons=[3.0]), rows)
    assert set(scale) == {"small-system-3.svg", "small-worst-silo-3.svg"}


def test_one_place_and_equal_values_are_drawn(tmp_path: Path) -> None:
    report.write(settings(methods=["feddrm"]), [row("feddrm", None, 0, 1.0)], [], tmp_path)
    assert json.loads((tmp_path / "rows.json").read_text())["rows"][0]["system"] == 1.0
    assert "1.000" in (tmp_path / "report.html").read_text()


def test_points_lie_where_the_axis_says() -> None:
    series = [Series("a", (Value(0.5, 0.4, 0.6), None, Value(0.7, 0.7, 0.7)))]
    chart = charts.curves("t", "x", ["1", "2", "3"], series)
    ticks = {float(tick.label): tick.at for tick in chart.vertical}
    first, last = chart.curves[0].marks
    assert first.y == pytest.approx(ticks[0.5], abs=0.2)
    assert last.y == pytest.approx(ticks[0.7], abs=0.2)
    assert first.low == pytest.approx(ticks[0.4], abs=0.2)
    assert (first.x, last.x) == (chart.horizontal[0].at, chart.horizontal[2].at)
    assert "none" in chart.description


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.5, 0.5), (0.61, 0.62), (0.98, 1.0), (0.0, 0.01)])
def test_axes_hold_what_they_show(low: float, high: float) -> None:
    bottom, top = charts.bounds(low, high)
    assert 0 <= bottom <= low <= high <= top <= 1
    assert bottom < top
    assert 2 <= len(charts.steps(bottom, top)) <= 12


def test_nothing_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="nothing"):
        charts.curves("t", "x", ["1"], [Series("a", (None,))])


def test_marks_keep_clear_of_one_another_and_of_the_axis() -> None:
    series = [Series(f"method-{number}", (Value(0.5, 0.4, 0.6),) * 3) for number in range(8)]
    across = charts.curves("t", "x", ["8", "20", "50"], series)
    marks = [mark for curve in across.curves for mark in curve.marks]
    assert all(across.left + 5 <= mark.x <= across.right - 5 for mark in marks)
    assert len({mark.x for mark in marks}) == len(marks)
    assert across.upwards == "share answered right"
    kinds = [Series(f"kind-{number}", (Value(0.5, 0.4, 0.6),) * 2) for number in range(5)]
    lying = charts.rows("t", ["a", "b"], kinds)
    places = [mark.y for curve in lying.curves for mark in curve.marks]
    assert len(set(places)) == len(places)
    first, second = (sorted(curve.marks[place].y for curve in lying.curves) for place in (0, 1))
    assert first[-1] < second[0]
    assert lying.top <= first[0]
    assert second[-1] <= lying.bottom
