"""A federation of four small hospitals, run once by real processes; the tests look at what is left of it."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddrm.demo.federation import Federation, Hospital
from feddrm.demo.processes import Processes

NAMES = ("north", "east", "south", "west")
ROUNDS = 2
PERSONS = {"north": 61, "east": 67, "south": 71, "west": 73}

# Values that occur nowhere but in patients' records, so that finding one on the wire proves a leak.
CANARY_PATIENT = "canary-patient-5f1e77a94c"
CANARY_TEXT = "canary-value-0c9b1d2e8f"
CANARY_NUMBER = 7351.862914

# Of a hospital whose records have no outcome: what its model answers is its own.
OWN = """
[own_targets.south]
kind = "classes"
column = "stage"
values = ["I", "II", "III"]
"""


def plan_text(
    roster_version: int,
    *,
    rounds: int = ROUNDS,
    noise_multiplier: float = 1.2,
    silos: Sequence[str] = NAMES,
    name: str = "small-job",
    own_target: bool = False,
) -> str:
    return f"""\
federation = "small"
name = "{name}"
roster_version = {roster_version}
silos = {json.dumps(list(silos))}

[model]
kind = "mlp"
hidden = [8]

[training]
rounds = {rounds}
local_steps = 2
sampling_rate = 0.3
clip_norm = 1.0
noise_multiplier = {noise_multiplier}
target_weight = 0.5
learning_rate = 0.5

{OWN if own_target else ""}
[privacy]
delta = 1e-5

[queries]
second_opinion = 0.5

[secure_aggregation]
threshold = 3
minimum_cohort = 3
colluders = 1
clip = 4.0
fraction_bits = 20

[deadlines]
gather_seconds = 30
train_seconds = 60
step_seconds = 15

[schema]
patient = "person"

[schema.target]
kind = "threshold"
column = "outcome"
operator = ">"
value = 0
labels = ["well", "ill"]

[[schema.columns]]
kind = "numeric"
name = "marker"
lower = 0
upper = 10000

[[schema.columns]]
kind = "categorical"
name = "word"
categories = ["red", "green", "{CANARY_TEXT}"]
"""


def write_records(path: Path, name: str, *, target: bool = True, own_target: bool = False) -> None:
    draw = random.Random(name)
    shift = NAMES.index(name) * 2000
    header = ["person", "marker", "word", "outcome"] if target else ["marker", "word"]
    if own_target:
        header = ["person", "marker", "word", "stage"]
    with path.open("w", newline="") as sink:
        writer = csv.DictWriter(sink, header, extrasaction="ignore")
        writer.writeheader()
        for person in range(PERSONS[name]):
            record = {
                "person": f"{CANARY_PATIENT}-{name}-{person}",
                "marker": CANARY_NUMBER if person == 0 else round(shift + draw.random() * 2000, 6),
                "word": CANARY_TEXT if person == 0 else draw.choice(["red", "green"]),
                "outcome": draw.randrange(2),
                "stage": "I" * (1 + person % 3),
            }
            for _ in range(1 + person % 2):
                writer.writerow(record)


@dataclass(frozen=True)
class SmallRun:
    """What one finished job of the small federation left."""

    federation: Federation
    recording: Path
    status: dict[str, Any]
    declining: str
    questions: Path
    answers: list[dict[str, Any]]
    bundles: dict[str, Path]


@contextmanager
def run_small_federation(directory: Path) -> Iterator[SmallRun]:
    """Four hospitals; `west` has a cap below the plan's epsilon. Coordinator and silos run until the block ends."""
    for name in NAMES:
        write_records(directory / f"{name}.csv", name, own_target=name == "south")
    questions = directory / "questions.csv"
    write_records(questions, "north", target=False)
    recording = directory / "traffic.bin"
    with Processes(directory / "logs") as processes:
        hospitals = [
            Hospital(
                name,
                directory / f"{name}.csv",
                "person",
                70,
                0.5 if name == "west" else 50.0,
                own_target=name == "south",
            )
            for name in NAMES
        ]
        federation = Federation(directory, processes, "small", hospitals)
        federation.found()
        version = federation.enrol(["clinic"])
        federation.start_coordinator("--record-traffic", recording)
        for name in NAMES:
            kept = directory / "kept" / name
            kept.mkdir(parents=True)
            federation.start_silo(name, "--demo-keep-updates", kept)
        federation.start_job(plan_text(version, own_target=True))
        for _ in federation.watch():
            pass
        status = federation.status()
        federation.publish()
        answers = federation.ask("clinic", questions)
        yield SmallRun(federation, recording, status, "west", questions, answers, federation.export())
