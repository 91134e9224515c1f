"""Drift: what silos forget when their mix of labels changes, with and without elastic weight consolidation.

In the first half of the rounds silos hold records of the first half of the classes only, in the second half those of
the others. Forgetting is what a silo's own model loses on its held-out records of the first classes. Consolidation is
the plan's own, `training.ewc`, and knows nothing of halves: every shared weight is pulled to an average of where it
stood, the harder the more published rounds changed it (feddrm.method.consolidation), with privacy and without.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from feddrm.cli import table
from feddrm.compare.budget import Noise
from feddrm.compare.data import Federation, public_size
from feddrm.compare.judging import answers_of
from feddrm.compare.methods import Method
from feddrm.compare.metrics import measure
from feddrm.compare.settings import Settings
from feddrm.compare.tables import part, targets_of
from feddrm.compare.training import State, Training
from feddrm.contract.errors import InputError

_FIGURES: Final = ("knew", "forgotten", "learnt")
# Seeds of the second half: other draws than in the first.
_SECOND: Final = 1 << 20


def halves(federation: Federation) -> tuple[Federation, Federation]:
    """The federation with the first half of the classes only, and with the others only.

    Raises:
        InputError: a silo has no record of one of them.
    """
    classes = len(federation.schema.target.classes)
    return _of(federation, range(classes // 2)), _of(federation, range(classes // 2, classes))


def run(
    settings: Settings, federation: Federation, method: Method, noise: Noise | None, strength: float, seed: int
) -> list[dict[str, Any]]:
    """One row a silo: what it knew between the halves, what of that it has forgotten at the end, what it has learnt.

    Args:
        settings: of the comparison; its rounds are divided.
        federation: of the data.
        method: the row; one that averages in all of its rounds.
        noise: None for training without privacy.
        strength: of consolidation, as in `plan_of`; 0 is none.
        seed: as in `Training`.

    Raises:
        InputError: see `halves`.
    """
    first, second = halves(federation)
    half = settings.train.model_copy(update={"rounds": max(settings.train.rounds // 2, 1), "local_rounds": 0})
    wanted = settings.model_copy(update={"train": half})
    torch.set_num_threads(1)
    training = Training(wanted, first, method, noise, seed, strength)
    state = _last(training, training.begin())
    between = _own(training, first, state)
    later = Training(wanted, second, method, noise, seed + _SECOND, strength)
    end = _last(later, replace(state, number=0))
    kept, learnt = _own(later, first, end), _own(later, second, end)
    return [
        {
            "method": method.name,
            "epsilon": None if noise is None else round(noise.epsilon, 4),
            "ewc": strength,
            "seed": seed,
            "silo": name,
            "knew": round(before, 4),
            "forgotten": round(before - after, 4),
            "learnt": round(new, 4),
        }
        for name, before, after, new in zip(federation.names, between, kept, learnt, strict=True)
    ]


def _last(training: Training, state: State) -> State:
    for after in training.run(state):
        state = after
    return state


def _own(training: Training, federation: Federation, state: State) -> tuple[float, ...]:
    return measure(answers_of(training.plan, federation, training.networks(state)), None).silo_own


def _of(federation: Federation, classes: range) -> Federation:
    silos = tuple(part(silo, _rows(targets_of(silo), classes)) for silo in federation.silos)
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


def text(rows: Sequence[dict[str, Any]]) -> str:
    """Medians over seeds, a line for each method, strength and silo, and their mean over silos."""
    groups: dict[tuple[str, str, float, str], list[dict[str, Any]]] = {}
    for row in rows:
        kind = (row["method"], "inf" if row["epsilon"] is None else f"{row['epsilon']:.3g}", row["ewc"])
        groups.setdefault((*kind, row["silo"]), []).append(row)
        groups.setdefault((*kind, "all"), []).append(row)
    lines = []
    for (method, epsilon, strength, silo), members in groups.items():
        middle = statistics.mean if silo == "all" else statistics.median
        figures = (f"{middle(row[key] for row in members):.3f}" for key in _FIGURES)
        lines.append([method, epsilon, strength, silo, *figures])
    return table(["method", "epsilon", "ewc", "silo", *_FIGURES], lines)
