"""Figures against small federations whose answers can be counted by hand, and against a slow second computation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from feddrm.compare.metrics import Answers, measure


def answers(said: list[list[int]], targets: list[int], home: list[int], sure: float = 1.0) -> Answers:
    logits = np.zeros((len(said), len(said[0]), 3), dtype=np.float32)
    for row, labels in enumerate(said):
        for silo, label in enumerate(labels):
            logits[row, silo, label] = sure
    return Answers(logits, logits[:, 0], np.array(targets), np.array(home))


def test_counted_by_hand() -> None:
    # Four records; silos 0, 0, 1, 2 are their homes.
    said = [[0, 1, 1], [1, 1, 0], [2, 2, 2], [0, 1, 2]]
    quality = measure(answers(said, [0, 0, 2, 1], [0, 0, 1, 2]), np.array([[0], [2], [0], [0]]))
    assert quality.system == pytest.approx(3 / 4)
    assert quality.routing == pytest.approx(1 / 4)
    assert quality.own_silo == pytest.approx(2 / 4)
    assert quality.random_silo == pytest.approx((1 + 1 + 3 + 1) / 12)
    # Votes: 1, 1, 2, tie of all three (the first class): one is right.
    assert quality.vote == pytest.approx(1 / 4)
    assert quality.averaged_head == pytest.approx(2 / 4)
    assert quality.silo_system == (1.0, 1.0, 0.0)
    assert quality.silo_own == (0.5, 1.0, 0.0)
    assert quality.worst_silo == 0.0
    assert quality.silo_variance == pytest.approx(np.var([1, 1, 0]))
    assert quality.asked == 1.0


def test_without_a_router_the_majority_answers() -> None:
    said = [[0, 1, 1], [1, 1, 0]]
    quality = measure(answers(said, [1, 0], [0, 1]), None)
    assert quality.routing is quality.one_silo is None
    assert quality.system == quality.vote == 0.5
    assert quality.asked == 3.0


def test_the_ensemble_follows_the_surer_silo_and_the_vote_does_not() -> None:
    both = answers([[0, 1, 1]], [0], [0])
    both.logits[0, 0] *= 20
    quality = measure(both, np.array([[1]]))
    assert (quality.ensemble, quality.vote, quality.system) == (1.0, 0.0, 0.0)


def test_two_who_are_asked_are_averaged() -> None:
    asked = answers([[0, 1, 2]], [0], [2])
    asked.logits[0, 0] *= 3
    assert measure(asked, np.array([[1, -1]])).system == 0.0
    two = measure(asked, np.array([[1, 0]]))
    assert two.system == 1.0
    assert two.one_silo == 0.0
    assert two.asked == 2.0
    # For the average the order of the two is nobody's business.
    turned = measure(asked, np.array([[0, 1]]))
    assert (turned.system, turned.one_silo) == (1.0, 1.0)


def test_what_silos_tell_counts_and_at_home_what_they_tell_their_own() -> None:
    own = answers([[0, 1]], [2], [1])
    told, at_home = np.zeros((1, 2, 3), dtype=np.float32), np.zeros((1, 3), dtype=np.float32)
    told[0, 0, 2] = told[0, 1, 0] = at_home[0, 2] = 1.0
    mixed = replace(own, told=told, at_home=at_home, shared=np.array([[0.0, 0.0, 1.0]], dtype=np.float32))
    quality = measure(mixed, np.array([[0]]))
    assert (quality.system, quality.one_silo, quality.own_silo, quality.shared_head) == (1.0, 1.0, 1.0, 1.0)
    assert quality.random_silo == 0.5
    alone = measure(own, np.array([[0]]))
    assert (alone.system, alone.own_silo, alone.shared_head) == (0.0, 0.0, None)


def test_against_a_slow_computation() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(200, 5, 4)).astype(np.float32)
    targets, home = generator.integers(0, 4, 200), generator.integers(0, 5, 200)
    routes = np.stack([generator.integers(0, 5, 200), generator.integers(-1, 5, 200)], axis=1)
    quality = measure(Answers(logits, logits.mean(axis=1), targets, home), routes)
    system = ensemble = 0
    for row in range(200):
        p = np.exp(logits[row]) / np.exp(logits[row]).sum(axis=1, keepdims=True)
        asked = [silo for silo in routes[row] if silo >= 0]
        system += p[asked].mean(axis=0).argmax() == targets[row]
        ensemble += p.mean(axis=0).argmax() == targets[row]
    assert quality.system == pytest.approx(system / 200)
    assert quality.ensemble == pytest.approx(ensemble / 200)
    assert quality.asked == pytest.approx((routes >= 0).sum() / 200)


def test_figures_are_rounded_for_print() -> None:
    printed = measure(answers([[0, 1, 1]] * 3, [0, 1, 1], [0, 1, 2]), np.array([[0], [0], [0]])).as_dict()
    assert printed["system"] == 0.3333
    assert printed["silo_system"] == [1.0, 0.0, 0.0]


def test_no_records_are_refused() -> None:
    with pytest.raises(ValueError, match="record"):
        measure(
            Answers(np.zeros((0, 2, 2), np.float32), np.zeros((0, 2), np.float32), np.zeros(0, int), np.zeros(0, int)),
            None,
        )
