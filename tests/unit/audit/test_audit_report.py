"""The HTML report: complete, self-contained, and deaf to whatever strangers write into names and reasons."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from audit_tools import Run, rewrite
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.audit.chart import draw
from feddrm.audit.words import CHECKS
from feddrm.contract import labels
from feddrm.contract.errors import ExitCode
from feddrm.contract.signed import sign
from privacy.canonical import canonical_json
from privacy.summary import Moment

ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "div", "h1", "h2", "h3"),
    *("p", "strong", "span", "code", "pre", "table", "caption", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd"),
    *("ul", "li", "figure", "figcaption", "svg", "desc", "line", "text", "polyline"),
}


class Page(HTMLParser):
    """Elements, attributes and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def written(run: Run, paper: Any, *files: Path, code: int = 0) -> Page:
    out = paper.path / "out.html"
    said, text, err = run("report", *files, "--root", paper.root, "--html", out)
    assert said == code, err
    assert str(out) in text
    page = Page(out.read_text(encoding="utf-8"))
    assert set(page.tags) <= ALLOWED
    for name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("href", "src", "srcset", "action", "style", "xlink:href"), (name, value)
    assert not re.search(r"url\(|@import|https?:", out.read_text(encoding="utf-8"))
    return page


def test_a_report_says_who_what_and_how_much(paper: Any, run: Run) -> None:
    page = written(run, paper, *(paper.export(name) for name in paper.ledgers))
    _, out, _ = run("recompute", paper.export("a"), "--delta", "1e-5", "--format", "json")
    spent = json.loads(out)["ledgers"][0]["jobs"][0]["spent"]["pld"]
    for words in (
        "Verified: 4 ledgers",
        f"{spent:.3f}",
        "one patient of one hospital",
        "without secure aggregation",
        "What is not protected",
        "Job first",
        paper.anchor.fingerprint,
        "Annex A. All checks",
        "the cap for life is 10",
    ):
        assert words in page.text
    assert page.tags.count("svg") >= 4
    assert page.tags.count("figure") == 4


def test_every_check_that_is_shown_is_explained(paper: Any, run: Run) -> None:
    shown = set()
    for files in ([paper.export("a")], [paper.export(name) for name in paper.ledgers]):
        _, out, _ = run("verify", *files, "--root", paper.root, "--format", "json")
        shown |= {check["name"] for ledger in json.loads(out)["ledgers"] for check in ledger["checks"]}
    assert shown <= set(CHECKS)


def test_a_failure_is_the_first_thing_to_read(paper: Any, run: Run) -> None:
    bad = paper.export("a")
    rewrite(bad, lambda f: f.update(leaves=f["leaves"][:6]))
    page = written(run, paper, bad, paper.export("b"), code=ExitCode.VERIFICATION)
    assert page.text.index("NOT verified") < page.text.index("What each hospital")
    assert "leaves are missing of the" in page.text
    assert "Figures of a ledger that failed are that hospital's word only" in page.text


def test_a_hospital_without_figures_and_one_without_a_ledger_are_named(paper: Any, run: Run) -> None:
    bad = paper.export("a")
    rewrite(bad, lambda f: f["leaves"].__setitem__(2, "junk"))
    page = written(run, paper, bad, paper.export("b"), code=ExitCode.VERIFICATION)
    assert "no figures: the entries do not follow signed plans" in page.text
    assert "No ledger was given for: c, d." in page.text


HOSTILE = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}\u202e\x1b[2J"


def test_hostile_text_stays_text(paper: Any, run: Run) -> None:
    """A signed column, a file's name, leaves, heads, rosters: all of it is somebody else's writing."""
    body = json.loads(paper.plan.plan.body())
    body["schema"]["patient"] = HOSTILE.replace("\x1b", "")
    signed = sign(paper.operator, labels.PLAN, canonical_json(body))
    file = paper.export("a", plans=[paper.plan.signed, signed])
    rewrite(file, lambda f: f["leaves"].__setitem__(1, HOSTILE))
    rewrite(file, lambda f: f.update(head=HOSTILE, roster=HOSTILE))
    named = paper.path / "<script>alert(3)<|script>&amp;\u202e.ledger"
    file.replace(named)
    page = written(run, paper, named, paper.export("b"), code=ExitCode.VERIFICATION)
    assert "script" not in page.tags
    assert "\u202e" not in page.text
    assert "\x1b" not in page.text
    assert "<script>alert(3)<|script>&amp;?.ledger" in page.text


def test_a_hostile_column_is_shown_as_it_was_written(paper: Any, run: Run) -> None:
    body = json.loads(paper.plan.plan.body())
    body["schema"]["patient"] = "<b>id</b>{{ 7*7 }}"
    signed = sign(paper.operator, labels.PLAN, canonical_json(body))
    page = written(run, paper, paper.export("a", plans=[paper.plan.signed, signed]))
    assert "<b>id</b>{{ 7*7 }}" in page.text


def test_another_root_makes_a_report_that_says_so(paper: Any, run: Run) -> None:
    key = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    paper.root.write_bytes(paper.anchor.model_copy(update={"operator": key}).to_text())
    page = written(run, paper, paper.export("a"), code=ExitCode.VERIFICATION)
    assert "No roster that the operator signed came with the ledgers." in page.text
    assert "No plan that the operator signed came with the ledgers." in page.text


def test_a_file_that_cannot_be_written_is_an_input_error(paper: Any, run: Run) -> None:
    code, _, err = run("report", paper.export("a"), "--root", paper.root, "--html", paper.path / "no" / "out.html")
    assert code == ExitCode.INPUT
    assert "Traceback" not in err


# The drawing.


def moments(*spent: float, cap: float = 3.0, alone: float = 1.0) -> list[Moment]:
    return [
        Moment(10 * n, "2027-01-15T08:00:00Z", s, s * alone, 2.5, 2.5 * alone, cap, cap * alone)
        for n, s in enumerate(spent)
    ]


def test_a_chart_stays_inside_its_frame_and_rises() -> None:
    chart = draw(moments(0.0, 1.0, 2.0, 2.5, alone=1.4))
    assert chart is not None
    for line in chart.lines:
        points = [tuple(map(float, point.split(","))) for point in line.points.split()]
        assert all(chart.left <= x <= chart.right and chart.top <= y <= chart.bottom for x, y in points)
    (spent,) = [line for line in chart.lines if line.kind == "spent"]
    heights = [float(point.split(",")[1]) for point in spent.points.split()]
    assert heights == sorted(heights, reverse=True)
    assert {line.kind for line in chart.lines} == {"allocated", "alone", "spent", "cap", "cap-alone"}


def test_equal_figures_are_one_curve_and_far_caps_are_said() -> None:
    chart = draw(moments(0.0, 1.0, cap=50.0))
    assert chart is not None
    assert {line.kind for line in chart.lines} == {"allocated", "spent"}
    assert chart.beyond == ("the hospital's cap for life, 50, lies above the drawing",)


@pytest.mark.parametrize("spent", [(), (0.0,), (1e-9, 2e-9), (5000.0, 6000.0)])
def test_no_figures_break_a_chart(spent: tuple[float, ...]) -> None:
    chart = draw(moments(*spent))
    assert (chart is None) == (not spent)
