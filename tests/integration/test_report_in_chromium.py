"""The report of a real federation's ledgers, opened in a real browser: it shows, it fits, it is quiet and alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chromium_page import CHROMIUM, Browser, browser
from small_federation import SmallRun

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium in PATH (Debian: apt-get install chromium): the report is not opened in one"
)
WIDTHS = (1280, 400)

# Elements whose content is wider than they are, or that reach out of the window.
_OVERFLOW = """
[...document.querySelectorAll('body, body *')].filter(e => {
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  if (e.closest('svg') && e.tagName !== 'svg' || style.position === 'absolute') return false;
  // Below the width at which tables are stacked their heads are there for screen readers only.
  if (e.closest('table.wide thead')) return false;
  return box.width && (box.right > document.documentElement.clientWidth + 0.5 || box.left < -0.5);
}).map(e => e.outerHTML.slice(0, 120))
"""
# Text whose colour is too near to what lies behind it (WCAG 2.2, 1.4.3: 4.5 to 1).
_FAINT = """
(() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const linear = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = parse(c).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor, p = parse(c);
    if (p.length < 4 || p[3] > 0) return c; } return 'rgb(255, 255, 255)'; };
  const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  return [...document.querySelectorAll('body *')].filter(own).filter(e => {
    const style = getComputedStyle(e), a = light(e.closest('svg') ? style.fill : style.color), b = light(behind(e));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
  }).map(e => e.outerHTML.slice(0, 120));
})()
"""
_UNNAMED = """
[...document.querySelectorAll('svg[role=img]')].filter(e =>
  e.getAttribute('aria-labelledby').split(' ').some(id => !(document.getElementById(id)?.textContent.trim()))).length
+ [...document.querySelectorAll('table')].filter(e => !e.querySelector('thead th[scope=col]')).length
+ [...document.querySelectorAll('section')].filter(e =>
  e.hasAttribute('aria-labelledby') && !document.getElementById(e.getAttribute('aria-labelledby'))).length
"""
# Overlapping labels of one drawing.
_COLLIDING = """
[...document.querySelectorAll('figure svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(e => [e.textContent, e.getBoundingClientRect()]);
  const meet = (p, q) => p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 2 && q.top < p.bottom - 2;
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([, q]) => meet(p, q)).map(([b]) => a + ' / ' + b));
})
"""


@dataclass(frozen=True)
class Found:
    """What is wrong with a page at one width."""

    characters: int
    scrolls: bool
    overflow: list[str]
    faint: list[str]
    unnamed: int
    colliding: list[str]


def look(page: Browser, path: Path, width: int) -> Found:
    page.resize(width)
    page.open(path)
    return Found(
        page.evaluate("document.body.innerText.trim().length"),
        page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"),
        page.evaluate(_OVERFLOW),
        page.evaluate(_FAINT),
        page.evaluate(_UNNAMED),
        page.evaluate(_COLLIDING),
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module", params=["honest", "tampered"])
def report(request: pytest.FixtureRequest, small: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of four honest ledgers; and of the same with one cut short, in a file with a long name."""
    folder = tmp_path_factory.mktemp("report")
    bundles = list(small.bundles.values())
    if request.param == "tampered":
        fields: dict[str, Any] = json.loads(bundles[0].read_text(encoding="utf-8"))
        fields["leaves"] = fields["leaves"][:4]
        bundles[0] = folder / f"{'north' * 30}.ledger"
        bundles[0].write_text(json.dumps(fields, indent=1, ensure_ascii=False), encoding="utf-8")
    out = folder / "report.html"
    command = [sys.executable, "-m", "feddrm.audit.cli", "report", *map(str, bundles)]
    root = small.federation.operator / "federation.root"
    done = subprocess.run([*command, "--root", str(root), "--html", str(out)], capture_output=True, text=True)
    assert done.returncode == (0 if request.param == "honest" else 6), done.stderr
    return out


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_shows_fits_and_can_be_read(page: Browser, report: Path, width: int) -> None:
    found = look(page, report, width)
    assert found.characters > 5000
    assert not found.scrolls
    assert (found.overflow, found.faint, found.unnamed, found.colliding) == ([], [], 0, [])
    assert page.evaluate("document.title").startswith("Privacy audit of small")
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate("document.querySelectorAll('h1').length") == 1


def test_the_report_is_quiet_and_asks_for_nothing(page: Browser, report: Path) -> None:
    page.resize(WIDTHS[0])
    page.open(report)
    assert page.complaints == []
    assert page.requests == [report.resolve().as_uri()]


def test_the_report_prints(page: Browser, report: Path) -> None:
    page.open(report)
    printed = page.pdf()
    assert printed.startswith(b"%PDF-")
    assert 3 <= printed.count(b"/Type /Page\n") <= 30


def test_the_looker_would_see_each_fault(page: Browser, tmp_path: Path) -> None:
    """Without this, a browser that shows nothing at all would pass the tests above."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!DOCTYPE html><title>x</title><p style='width:3000px'>wide</p><p style='color:#aaa'>faint</p>"
        "<svg role=img aria-labelledby='none'></svg><table><tr><td>1</table><img src='http://127.0.0.1:9/x.png'>"
        "<figure><svg width=99 height=99><text x=5 y=50>one</text><text x=9 y=50>two</text></svg></figure>"
        "<script>console.error('trouble')</script>"
    )
    found = look(page, bad, 400)
    assert found.characters < 100
    assert found.scrolls
    assert found.overflow
    assert found.faint
    assert found.unnamed == 2
    assert found.colliding == ["one / two"]
    assert any("trouble" in text for text in page.complaints)
    assert "http://127.0.0.1:9/x.png" in page.requests
