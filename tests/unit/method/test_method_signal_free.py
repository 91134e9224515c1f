"""Noise that is missing from a sum is found in the sum, by the true trainers and the true routing fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the silo extra is not installed")
pytest.importorskip("opacus", reason="the silo extra is not installed")

from feddrm.contract.plan import Plan
from feddrm.features import Dataset
from feddrm.method import routing_fit
from feddrm.method import trainer as trainer_module
from feddrm.method.layout import initial_model, initial_personal, layout_of
from feddrm.method.patient_rows import patient_labels
from feddrm.method.signal_free import fit_places, training_places, training_variance
from feddrm.method.trainer import Trainer
from privacy.discrete import DiscreteGaussianSource
from privacy.noise_check import NoiseCheck, places_needed
from secagg.quantise import quantise

MakePlan = Callable[..., Plan]
MakeEntropy = Callable[[bytes], Callable[[int], bytes]]
SIZES = (60, 60, 60)
WIDTH = 63


class Going:
    def is_set(self) -> bool:
        return False


class Silent:
    """In the place of a noise source that draws nothing."""

    def add(self, values: np.ndarray, std: float, grid: float) -> np.ndarray:
        return np.array(values)


def small_plan(make_plan: MakePlan) -> Plan:
    return make_plan(hidden=(WIDTH,), noise_multiplier=1.0, local_steps=2, learning_rate=2.0, clip_norm=1.0)


def trained(plan: Plan, place: int, entropy: Callable[[int], bytes]) -> Trainer:
    rng = np.random.default_rng(place)
    # One hospital's patients are far from the others', so that there is a signal.
    features = (rng.standard_normal((60, 4)) + 2 * place).astype(np.float32)
    data = Dataset(features, rng.integers(0, 2, 60), [b"%d" % patient for patient in range(60)])
    return Trainer(plan, layout_of(plan), data, place, SIZES[place], entropy)


@pytest.mark.parametrize("silent", [None, 1])
def test_a_hospital_that_draws_no_noise_in_training_is_found_in_the_sums(
    make_plan: MakePlan, make_entropy: MakeEntropy, monkeypatch: pytest.MonkeyPatch, silent: int | None
) -> None:
    plan = small_plan(make_plan)
    layout = layout_of(plan)
    trainers = []
    for place in range(3):
        with monkeypatch.context() as patch:
            if place == silent:
                patch.setattr(trainer_module, "GaussianSource", lambda entropy: Silent())
            trainers.append(trained(plan, place, make_entropy(b"%d" % place)))
    model, personal = initial_model(layout, bytes(32)), initial_personal(layout, bytes(32))
    sums = plan.secure_aggregation
    check = NoiseCheck()
    for _ in range(places_needed(1 / 3) // (WIDTH + 1) + 1):
        updates = [trainer.train_round(model, personal, Going())[0] for trainer in trainers]
        total = np.sum([quantise(update, sums.clip, sums.fraction_bits) for update in updates], axis=0)
        check.add(training_places(layout, total / 2.0**sums.fraction_bits), training_variance(plan, SIZES))
    finding = check.finding()
    assert finding.short == (silent is not None)
    assert finding.ratio == pytest.approx(1.0 if silent is None else 2 / 3, abs=0.15)


def test_there_is_no_signal_where_noise_is_looked_for(make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan(make_plan)
    layout = layout_of(plan)
    monkeypatch.setattr(trainer_module, "GaussianSource", lambda entropy: Silent())
    model, personal = initial_model(layout, bytes(32)), initial_personal(layout, bytes(32))
    update, _ = trained(plan, 2, lambda size: b"k" * size).train_round(model, personal, Going())
    signal = np.abs(layout.split(update)["routing_head.weight"]).max()
    assert signal > 1e-3
    assert np.abs(training_places(layout, update)).max() < 1e-4 * signal


def test_a_clip_of_updates_that_cuts_noise_off_is_no_ground_for_an_accusation(make_plan: MakePlan) -> None:
    plan = make_plan(noise_multiplier=1000.0, learning_rate=100.0)
    with pytest.raises(ValueError, match="clip of updates"):
        training_variance(plan, SIZES)


@pytest.mark.parametrize(
    "shape",
    [
        {"momentum": 0.9},
        {"proximal_mu": 8.0},
        {"momentum": 0.5, "proximal_mu": 4.0},
        {"decay": "cosine", "rounds": 4},
        {"head_steps": 3},
    ],
    ids=str,
)
def test_what_shapes_the_steps_is_in_the_planned_variance(
    make_plan: MakePlan, make_entropy: MakeEntropy, shape: dict[str, Any]
) -> None:
    """Measured on a silo where nobody is drawn, in 401 places: all of the update is noise, pulled and accelerated."""
    plan = make_plan(
        hidden=(400,),
        local_steps=5,
        learning_rate=0.1,
        sampling_rate=1e-6,
        clip_norm=1e-4,
        noise_multiplier=1.0,
        **shape,
    )
    number = 3
    layout = layout_of(plan)
    nobody = Dataset(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), [])
    trainer = Trainer(plan, layout, nobody, 0, 1000, make_entropy(b"n"))
    vectors = (initial_model(layout, bytes(32)), initial_personal(layout, bytes(32)))
    places = training_places(layout, trainer.train_round(*vectors, Going(), number)[0])
    planned = training_variance(plan, [1000], number)
    # A deviation is sqrt(2 / 401) = 7 %.
    assert (places**2).mean() / planned == pytest.approx(1.0, abs=0.3)
    assert training_variance(plan, [1000]) <= planned


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("silent", [False, True])
def test_a_share_that_is_missing_from_the_routing_fit_is_found(
    make_entropy: MakeEntropy, silent: bool, classes: int
) -> None:
    """A shared target head has as many places again, so that half as many sums tell."""
    silos, width, scale = 4, 99, 1 << 20
    terms = routing_fit.Terms(
        silos=silos,
        width=width,
        fraction_bits=16,
        step_size=1.0,
        momentum=0.5,
        average_from=1,
        public_sizes=(50,) * silos,
        classes=classes,
    )
    rng = np.random.default_rng(5)
    labels = patient_labels(rng.integers(0, 3, 50), [b"%d" % patient for patient in range(50)], 3)
    phi = rng.standard_normal((silos, 50, width + 1)) + np.arange(silos)[:, None, None]
    phi = np.floor(phi / np.linalg.norm(phi, axis=2, keepdims=True) * (2**20 - 100)).astype(np.int64)
    noise = DiscreteGaussianSource(make_entropy(b"fit"))
    state, check = routing_fit.initial_state(terms), NoiseCheck()
    blocks = 2 if classes else 1
    for _ in range(places_needed(1 / silos) // (blocks * (width + 1)) + 1):
        total = np.zeros(terms.words, dtype=np.int64)
        for silo in range(silos):
            total += routing_fit.contribution(terms, state, phi[silo], silo, labels if classes else None)
            if not (silent and silo == 2):
                total += noise.sample(terms.words, scale)
        found = list(fit_places(terms, total, scale, silos))
        assert [planned for _, planned in found] == [rows * silos * scale**2 for rows in (silos, classes) if rows]
        for places, planned in found:
            check.add(places, planned)
        state = routing_fit.advance(terms, state, total)
    assert check.finding().short == silent
