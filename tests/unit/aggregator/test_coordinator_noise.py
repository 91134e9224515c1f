"""A hospital that draws no noise is found in the sums, from its masked input to status, transcript and card."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coordinator_harness import Identities, MiniSilo, World

from aggregator.blobs import SUMS
from aggregator.noise import StoredNoise
from aggregator.present import status_document, status_text
from feddrm.contract import messages as m
from feddrm.contract.schedule import STAGE_TRAIN
from feddrm.contract.transcript import JobRecord
from feddrm.method.noise_meter import NoiseMeter
from feddrm.method.progress import advance, initial_state
from privacy.noise import GaussianSource
from privacy.noise_check import places_needed
from secagg.quantise import quantise

SIZES = {"site-1": 100, "site-2": 200, "site-3": 100, "site-4": 150, "site-5": 120}
WIDTH, RATE, NOISE = 127, 0.1, 4.0
ROUNDS = places_needed(1 / 5) // (WIDTH + 1) + 1


class TrainingSilo(MiniSilo):
    """Whose state has room for the stages after training; `noise` is 0 where it draws none."""

    noise = NOISE

    def _offer(self, signed: Any) -> list[Any]:
        super()._offer(signed)
        assert self.job is not None
        self.models[0] = initial_state(self.job.plan, self.layout, self.job.hash)
        return [m.PlanAnswer(self.job.hash, True), self.ready()]

    def _apply(self, before: Any, total: Any, count: int) -> Any:
        assert self.job is not None
        return advance(self.job.plan, self.layout, STAGE_TRAIN, before, total, np.zeros(0, np.int64), count)

    def vector(self) -> Any:
        """One step of DP-SGD whose signal is some vector that adds up to nothing over the routing head's classes."""
        assert self.job is not None
        plan = self.job.plan
        training, sums = plan.training, plan.secure_aggregation
        update = np.zeros(self.layout.shared_size)
        head = self.layout.split(update)["routing_head.weight"]
        head[0], head[1] = 0.01, -0.01
        if self.noise:
            share = training.learning_rate / (training.sampling_rate * SIZES[self.name])
            update = GaussianSource(self.entropy).add(update, share * self.noise * training.clip_norm, 2.0**-30)
        return quantise(update, sums.clip, sums.fraction_bits)


def world_of(tmp_path: Path, identities: Identities, silent: str | None, **changes: Any) -> World:
    fit = {"sums": 1, "noise_multiplier": 20.0, "step_size": 1.0, "public_sizes": SIZES, "minimum_sums": 1}
    plan = {
        "model": {"kind": "mlp", "hidden": (WIDTH,)},
        "training__rounds": ROUNDS,
        "training__noise_multiplier": NOISE,
        "routing_fit": fit,
        **changes,
    }
    world = World(tmp_path / "server", identities=identities, **plan)
    for name, silo in world.silos.items():
        world.silos[name] = staged = TrainingSilo(name, silo.index, identities, silo.read_sum)
        staged.noise = 0.0 if name == silent else NOISE
    world.connect()
    world.start()
    return world


def trained(world: World) -> bool:
    return len(world.job.outcomes) >= ROUNDS


@pytest.mark.parametrize("silent", [None, "site-2"])
def test_a_silo_that_draws_no_noise_shows_in_the_status(
    tmp_path: Path, identities: Identities, silent: str | None
) -> None:
    world = world_of(tmp_path, identities, silent)
    world.run(lambda: len(world.job.outcomes) >= 2)
    early = world.status().noise
    assert early is not None
    assert not early.short, "too few places to tell"
    world.run(lambda: trained(world))
    found = world.status().noise
    assert found is not None
    assert (found.places, found.needed) == (ROUNDS * (WIDTH + 1), places_needed(1 / 5))
    # site-2 is the largest, so that its share of the noise is the smallest.
    share = SIZES["site-2"] ** -2 / sum(size**-2 for size in SIZES.values())
    assert found.ratio == pytest.approx(1 - share if silent else 1.0, abs=0.06)
    assert not found.short, "a fifth of the silos, but a twentieth of the noise"


@pytest.mark.parametrize("silent", [None, "site-1"])
def test_the_same_in_words_after_a_restart_and_in_the_transcript(
    tmp_path: Path, identities: Identities, silent: str | None
) -> None:
    world = world_of(tmp_path, identities, silent)
    world.run(lambda: trained(world))
    before = world.status()
    assert before.noise is not None
    assert before.noise.short is (silent is not None)
    text = status_text(status_document(before))
    assert ("NOISE IS MISSING" if silent else "no hospital's share is missing") in text
    assert json.loads(json.dumps(status_document(before)))["noise"]["short"] is (silent is not None)
    world.restart_coordinator()
    assert world.status().noise == before.noise
    stored = StoredNoise(world.job.hash, world.job.plan)
    blobs = world.engine.store.blobs
    record = replace(world.job.record(), noise=stored.look(world.job.outcomes, blobs, math.inf))
    assert JobRecord.from_json(json.loads(record.to_bytes())) == record
    assert record.noise == before.noise


def test_few_sums_are_read_at_one_look_and_a_damaged_one_is_left_out(tmp_path: Path, identities: Identities) -> None:
    world = world_of(tmp_path, identities, None)
    world.run(lambda: len(world.job.outcomes) >= 4)
    blobs = world.engine.store.blobs
    first, _, damaged, gone = (outcome.sum for outcome in world.job.outcomes[:4])
    blobs.path(SUMS, damaged).write_bytes(b"no sum")
    blobs.path(SUMS, gone).unlink()
    stored = StoredNoise(world.job.hash, world.job.plan)
    size = len(blobs.get(SUMS, first))
    places = [stored.look(world.job.outcomes[:4], blobs, limit) for limit in (1, size + 1, math.inf, math.inf)]
    assert [found.places if found else 0 for found in places] == [128, 256, 256, 256]


def test_what_cannot_be_judged_is_not(tmp_path: Path, identities: Identities) -> None:
    """Without public sizes nobody knows how much noise is planned; with a clip below the noise it is another."""
    world = World(tmp_path / "unnamed sizes", identities=identities)
    world.connect()
    world.start()
    world.run(lambda: len(world.job.outcomes) >= 1)
    status = world.status()
    assert status.noise is None
    assert status_document(status)["noise"] is None
    assert "noise:" not in status_text(status_document(status))
    loud = world_of(tmp_path, identities, None, training__learning_rate=10.0)
    meter = NoiseMeter(loud.plan.plan)
    meter.add(1, 1, np.zeros(loud.job.layout.shared_size, np.int64), np.zeros(0, np.int64), 5)
    assert meter.finding() is None


def test_of_a_sum_of_fewer_silos_the_least_noise_is_expected(tmp_path: Path, identities: Identities) -> None:
    """The transcript does not say which: nobody is accused for having many patients."""
    world = world_of(tmp_path, identities, None)
    plan, layout = world.plan.plan, world.job.layout
    total = np.zeros(layout.shared_size, np.int64)
    # By hand: the four largest silos' variances, five rows of the head.
    training = plan.training
    variances = sorted((training.learning_rate * NOISE / (RATE * size)) ** 2 for size in SIZES.values())
    std = math.sqrt(5 * sum(variances[:4]))
    rows = layout.split(total)
    rows["routing_head.weight"][0] = round(std * 2.0**plan.secure_aggregation.fraction_bits)
    rows["routing_head.bias"][0] = round(std * 2.0**plan.secure_aggregation.fraction_bits)
    meter = NoiseMeter(plan)
    meter.add(1, 1, total, np.zeros(0, np.int64), 4)
    found = meter.finding()
    assert found is not None
    assert found.ratio == pytest.approx(1.0, rel=1e-4)
