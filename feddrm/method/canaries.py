"""An offline run of the silo's own trainer on made-up patients, some of whom are canaries (see privacy.canary).

No record of the hospital is read. A canary must be as easy to see as the claim allows, so the run sees what an
adversary of the claim sees, every round's update, and chooses what one could choose: data, network and the model of
every round. The network has one hidden unit and a feature of its own for each canary, large enough that almost all of
the canary's clipped gradient lies on that feature's weight. The gradients of two canaries are then all but orthogonal,
and the sum of the released changes of that weight tells how often its canary was drawn, as well as anything can.

Sampling rate, noise multiplier, local steps, loss weight and heads are those of the plan. A clip above 1 is not: noise
follows it, so that epsilon does not depend on it, and a canary's gradient must exceed it. Nor is the learning rate: it
is so small that the model stays where the run put it, since what a step does with its noised gradient is
post-processing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.plan import Plan
from feddrm.features import Dataset
from feddrm.method.layout import Layout, Scope, layout_of
from feddrm.method.trainer import Trainer
from feddrm.method.update import Model, from_float
from privacy.canary import CANARIES, inserted

# Patients beside the canaries, ordinary ones, with features of their own.
OTHERS: Final = 200
_OTHER_COLUMNS: Final = 16
# Of a canary's gradient, what is not on its own feature is about one in this many.
_LOUDNESS: Final = 64.0
# Visits of one canary. A trainer that counts visits as patients makes a canary heard this many times.
_RECORDS: Final = 3
_PUBLIC_SIZE: Final = CANARIES // 2 + OTHERS
# How far the model may move in a round, in weights of order 1.
_STEP: Final = 2.0**-8


def audit_plan(plan: Plan) -> Plan:
    """The plan of the run: `plan`'s training on the run's own network and features."""
    training = plan.training
    # What one step adds to the weights that all patients share is at most about q * m / _LOUDNESS and some noise.
    pull = training.local_steps * (training.sampling_rate * _PUBLIC_SIZE / _LOUDNESS + training.noise_multiplier)
    clip = min(training.clip_norm, 1.0)
    rate = _STEP * training.sampling_rate * _PUBLIC_SIZE / (clip * (pull + 1))
    columns = [
        {"kind": "numeric", "name": f"c{index}", "lower": -1.0, "upper": 1.0, "missing_indicator": False}
        for index in range(CANARIES + _OTHER_COLUMNS)
    ]
    raw = plan.model_dump(mode="json", by_alias=True)
    kept = {key: raw[key] for key in ("federation", "name", "roster_version", "silos", "privacy", "secure_aggregation")}
    return Plan.model_validate(
        {
            **kept,
            "schema": {"patient": "canary", "target": raw["schema"]["target"], "columns": columns},
            "model": {"kind": "mlp", "hidden": [1]},
            # Without what works on noised steps only: it is post-processing, and hides a canary without protecting it.
            "training": {
                **{key: value for key, value in raw["training"].items() if key not in training.later},
                "clip_norm": clip,
                "learning_rate": min(max(rate, 1e-9), 1e6),
            },
        }
    )


def audit_data(seed: bytes, classes: int) -> Dataset:
    """The canaries that the seed inserts, and the others: the others are the same for every seed."""
    rng = np.random.default_rng(0)
    width = CANARIES + _OTHER_COLUMNS
    others = np.zeros((OTHERS, width), dtype=np.float32)
    others[:, CANARIES:] = rng.choice([-1.0, 1.0], size=(OTHERS, _OTHER_COLUMNS))
    chosen = np.repeat(np.flatnonzero(inserted(seed)), _RECORDS)
    canaries = np.zeros((len(chosen), width), dtype=np.float32)
    canaries[np.arange(len(chosen)), chosen] = _LOUDNESS
    patients = [b"canary %d" % index for index in chosen] + [b"other %d" % index for index in range(OTHERS)]
    targets = np.concatenate([np.zeros(len(chosen), dtype=np.int64), rng.integers(0, classes, OTHERS)])
    return Dataset(np.concatenate([canaries, others]), targets, patients)


def audit_model(layout: Layout) -> tuple[Model, Model]:
    """The model that every round begins with: the hidden unit is on, and every loss pulls at it the same way."""

    def vector(scope: Scope) -> Model:
        parts = []
        for tensor in layout.of(scope):
            values = np.zeros(tensor.shape)
            if tensor.name == "trunk.0.bias":
                values[:] = 1.0
            elif tensor.name in ("routing_head.weight", "target_head.weight"):
                # The class of all canaries is held to be unlikely, so that its gradient is large.
                values[:] = 1.0
                values[0] = -1.0
            parts.append(values.reshape(-1))
        return from_float(np.concatenate(parts))

    return vector("shared"), vector("personal")


def run(
    plan: Plan, rounds: int, seed: bytes, entropy: Callable[[int], bytes], advance: Callable[[], None]
) -> npt.NDArray[np.float64]:
    """Scores of all canaries, float64[CANARIES], in units of one canary's clipped gradient.

    Args:
        plan: whose training is audited.
        rounds: how many; the event is that of rounds * local_steps steps.
        seed: of the coins (privacy.canary.inserted).
        entropy: a CSPRNG such as os.urandom, for sampling and noise, as in training.
        advance: called after every round.

    Raises:
        InputError: this machine's arithmetic is not fit to train.
    """
    audited = audit_plan(plan)
    layout = layout_of(audited)
    training = audited.training
    data = audit_data(seed, len(audited.schema_.target.classes))
    trainer = Trainer(audited, layout, data, 0, _PUBLIC_SIZE, entropy)
    model, personal = audit_model(layout)
    total = np.zeros(CANARIES)
    never = threading.Event()
    for _ in range(rounds):
        update, _ = trainer.train_round(model, personal, never)
        total += layout.split(update)["trunk.0.weight"][0, :CANARIES]
        advance()
    # A canary in the batch pushes its weight down.
    return -total * training.sampling_rate * _PUBLIC_SIZE / (training.learning_rate * training.clip_norm)
