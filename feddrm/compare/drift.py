"""Drift: what silos forget when their mix of labels changes, with and without elastic weight consolidation.

In the first half of the rounds silos hold the first half of the classes, in the end the others, whether at once or by
equal steps. Forgetting is what a silo's own model loses on its held-out records of the first classes. Consolidation is
the plan's own, `training.ewc` (feddrm.method.consolidation), with privacy and without.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from feddrm.compare.budget import Noise
from feddrm.compare.data import Federation, public_size
from feddrm.compare.judging import answers_of
from feddrm.compare.methods import Method
from feddrm.compare.metrics import measure
from feddrm.compare.plans import plan_of
from feddrm.compare.settings import Settings
from feddrm.compare.training import State, Training
from feddrm.contract.errors import InputError


def halves(federation: Federation) -> tuple[Federation, Federation]:
    """The federation with the first half of the classes only, and with the others only.

    Raises:
        InputError: a silo has no record of one of them.
    """
    classes = len(federation.schema.target.classes)
    return _of(federation, range(classes // 2)), _of(federation, range(classes // 2, classes))


def mixed(federation: Federation, moved: float, stays: float, seed: int) -> Federation:
    """The federation when a part of the change is done: silos train on fewer records of the first half of the classes,
    on more of the others. Who leaves does not come back.

    Args:
        federation: of the data.
        moved: from 0 before the change to 1 after it.
        stays: the share of records of a half that a silo has at the less.
        seed: of who leaves first.
    """
    classes = len(federation.schema.target.classes)
    silos = []
    for place, silo in enumerate(federation.silos):
        targets = silo.known_targets()
        generator = np.random.default_rng([seed, 6, place])
        there = np.zeros(len(silo), dtype=bool)
        for label in range(classes):
            rows = generator.permutation(np.flatnonzero(targets == label))
            share = moved if label >= classes // 2 else 1.0 - moved
            count = round((stays + (1.0 - stays) * share) * len(rows))
            there[rows[:count]] = True
        silos.append(silo.part(there))
    sizes = tuple(public_size(len(set(silo.patients))) for silo in silos)
    return replace(federation, silos=tuple(silos), sizes=sizes)


def holds(settings: Settings, federation: Federation, method: Method) -> bool:
    """Whether silos share a tensor that consolidation is to hold: heads of their own it does not."""
    holdable = plan_of(settings, federation, method, None).holdable
    return any(fnmatch.fnmatch(tensor.name, pattern) for tensor in holdable for pattern in settings.drift.tensors)


def consolidation_of(settings: Settings, strength: float) -> Mapping[str, Any] | None:
    """The plan's `training.ewc` at a part of the strongest pull; None for 0."""
    wanted = settings.drift
    if not strength:
        return None
    anchor = {"anchor_round": settings.train.rounds // 2} if wanted.anchored else {}
    return {"strength": strength, "memory": wanted.memory, "tensors": list(wanted.tensors), **anchor}


def run(
    settings: Settings, federation: Federation, method: Method, noise: Noise | None, strength: float, seed: int
) -> list[dict[str, Any]]:
    """One row a silo: what it knew between the halves, what of that it has forgotten at the end, what it has learnt.

    Args:
        settings: of the comparison; its rounds are divided.
        federation: of the data.
        method: the row; one that averages in all of its rounds. Of its stages the first runs.
        noise: None for training without privacy.
        strength: of consolidation, as in `consolidation_of`; 0 is none.
        seed: as in `Training`.

    Raises:
        InputError: see `halves`; or there is only one round.
    """
    first, second = halves(federation)
    rounds = settings.train.rounds
    if rounds < 2:
        raise InputError("Drift needs two rounds.")
    wanted = settings.model_copy(update={"train": settings.train.model_copy(update={"local_rounds": 0})})
    torch.set_num_threads(1)
    ewc, stays = consolidation_of(settings, strength), settings.drift.stays

    def at(moved: float) -> Training:
        return Training(wanted, mixed(federation, moved, stays, seed), method, noise, seed, ewc)

    training = at(0.0)
    state = _until(training, training.begin(), rounds // 2)
    between = _own(training, first, state)
    steps = rounds - state.number if settings.drift.change == "gradual" else 1
    for step in range(1, steps + 1):
        training = at(step / steps)
        state = _until(training, state, rounds - steps + step)
    kept, learnt = _own(training, first, state), _own(training, second, state)
    return [
        {
            "silo": name,
            "knew": round(before, 4),
            "forgotten": round(before - after, 4),
            "learnt": round(new, 4),
        }
        for name, before, after, new in zip(federation.names, between, kept, learnt, strict=True)
    ]


def _until(training: Training, state: State, number: int) -> State:
    for after in training.run(state):
        if after.number == number:
            return after
    raise ValueError("a round that there is not")


def _own(training: Training, federation: Federation, state: State) -> tuple[float, ...]:
    return measure(answers_of(training.plan, federation, training.networks(state)), None).silo_own


def _of(federation: Federation, classes: range) -> Federation:
    silos = tuple(silo.part(_rows(silo.known_targets(), classes)) for silo in federation.silos)
    held = _rows(federation.targets, classes)
    count = len(federation.silos)
    if not all(len(silo) for silo in silos) or len(np.unique(federation.home[held])) < count:
        raise InputError("A silo has no records of half of the classes, so that its drift cannot be measured.")
    return replace(
        federation,
        silos=silos,
        features=federation.features[held],
        targets=federation.targets[held],
        home=federation.home[held],
        sizes=tuple(public_size(len(set(silo.patients))) for silo in silos),
    )


def _rows(targets: npt.NDArray[np.int64], classes: range) -> Any:
    return np.flatnonzero(np.isin(targets, classes))
