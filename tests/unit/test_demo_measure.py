from __future__ import annotations

import pytest

from feddrm.demo.measure import Truth, measure

TRUTH = [Truth("a", "x"), Truth("a", "y"), Truth("b", "x"), Truth("c", "x")]


def test_every_share_is_of_the_records_it_names() -> None:
    result = measure(
        TRUTH,
        routes=[["a"], ["b"], ["a", "b"], ["b", "c"]],
        answers=["x", "x", "x", "y"],
        predictions={"a": ["x", "y", "y", "y"], "b": ["y", "y", "x", "y"], "c": ["y", "y", "y", "y"]},
        majority={"a": "x", "b": "x", "c": "y"},
    )
    assert result.queries == 4
    assert result.silos_asked == 1.5
    # Of two that are named in no order, a desk picks the right one half of the time.
    assert result.routing_accuracy == 0.5
    assert result.chance_routing == 0.3333
    assert result.largest_site_routing == 0.5
    assert result.system_accuracy == 0.5
    assert result.majority_accuracy == 0.5
    assert result.own_silo_accuracy == 0.75
    assert result.random_silo_accuracy == round((2 + 2 + 1) / 12, 4)


def test_missing_answers_are_not_counted_silently() -> None:
    with pytest.raises(ValueError, match="one entry"):
        measure(TRUTH, [["a"]] * 4, ["x"] * 3, {"a": ["x"] * 4}, {"a": "x"})
