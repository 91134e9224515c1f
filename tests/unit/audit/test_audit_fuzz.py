"""Hostile files: whatever is done to a bundle, a transcript or an opening, the auditor says so and never breaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_tools import Run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privacy.bundle import parse_bundle
from privacy.canonical import canonical_json
from privacy.commitments import parse_opening
from privacy.errors import MalformedError
from privacy.leaves import Record

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = ("__reduce__", "py/object", "__class__", "!!python/object/apply:os.system", "builtins.eval")


@pytest.fixture
def bundle(paper: Any) -> Path:
    file: Path = paper.export("a")
    return file


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, the insides of leaves and documents that are texts included."""
    found = [path]
    if isinstance(value, dict):
        found += [place for key in value for place in _places(value[key], (*path, key))]
    elif isinstance(value, list):
        found += [place for number in range(len(value)) for place in _places(value[number], (*path, number))]
    return found


def _changed(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _changed(value[path[0]], path[1:], change)
    return copy


def _attempt(run: Run, *arguments: object) -> int:
    code, _, err = run(*arguments)
    assert code in (0, 3, 6), err
    assert "Traceback" not in err
    assert "internal" not in err
    return code


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_bundle_breaks_the_auditor(paper: Any, run: Run, bundle: Path, data: st.DataObject) -> None:
    """One place of a real bundle holds something else, or one character of one text is another."""
    fields = json.loads(paper.export("a").read_text(encoding="utf-8"))
    place = data.draw(st.sampled_from(_places(fields)))

    def change(value: Any) -> Any:
        if isinstance(value, str) and value and data.draw(st.booleans()):
            where = data.draw(st.integers(0, len(value) - 1))
            return value[:where] + data.draw(st.characters(codec="utf-8")) + value[where + 1 :]
        return data.draw(json_values)

    changed = json.dumps(_changed(fields, place, change), indent=1, ensure_ascii=False)
    bundle.write_bytes(changed.encode("utf-8", "surrogatepass"))
    others = [paper.export("b")]
    code = _attempt(run, "verify", bundle, *others, "--root", paper.root)
    if code == 0:
        # Whatever still verifies says the same: the change was none, or only took a witness of somebody else's away.
        after = parse_bundle(bundle.read_bytes())
        assert after.leaves == tuple(leaf.encode() for leaf in fields["leaves"])
        assert after.origin == fields["origin"]
    if code != 3:
        _attempt(run, "show", bundle)
        _attempt(run, "recompute", bundle, "--delta", "1e-6")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300) | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_are_taken_for_a_bundle_an_opening_or_a_leaf_by_accident(text: bytes) -> None:
    for parse in (parse_bundle, parse_opening, Record.decode):
        with pytest.raises(MalformedError):
            parse(text)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_leaf_names_nothing_but_its_own_fields(paper: Any, data: st.DataObject) -> None:
    """The codec is a whitelist: no key and no type from outside gets through, so nothing in a log can name code."""
    bodies = paper.ledgers["a"].bodies()
    fields = json.loads(data.draw(st.sampled_from(bodies)))
    where = data.draw(st.sampled_from(["key", "type", "value"]))
    name = data.draw(st.sampled_from(NAMES) | st.text(max_size=10))
    if where == "key":
        fields[name] = data.draw(json_values)
    elif where == "type":
        fields["type"] = name
    else:
        fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(st.sampled_from(NAMES) | json_values)
    try:
        body = canonical_json(fields)
        record = Record.decode(body)
    except MalformedError:
        return
    assert record.encode() == body
    assert not any(word in body.decode() for word in NAMES)
