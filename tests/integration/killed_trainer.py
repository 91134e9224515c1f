"""A silo's gate, ledger and trainer at work in a process that is killed again and again: run by test_killed_trainer.

The parent imports torch once and forks a worker for each life; what a worker *did* it writes into memory that outlives
it, before it does the next thing. After each death the parent holds the ledger against that.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract.charge import charge
from feddrm.contract.plan import Plan, plan_hash
from feddrm.contract.release import schema_hash
from feddrm.features import Dataset
from feddrm.method.layout import initial_model, initial_personal, layout_of
from feddrm.method.trainer import Trainer
from privacy.accounting import epsilon
from privacy.commitments import commit_update
from privacy.events import PoissonSubsampledGaussian
from privacy.gate import Gate
from privacy.leaves import AbortReason, Caps, Commit, Reserve
from privacy.ledger import Ledger
from privacy.summary import summarise

ORIGIN, NOW = "feddrm/trial/alpha", 1_800_000_000_000
SIGNER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
CAPS = Caps(9e5, 9e5, 0.1, 9e5, 9e5, 0.5, 10**6)
STEPS = 3
PLAN = Plan.model_validate(
    {
        "federation": "trial",
        "name": "killed",
        "roster_version": 1,
        "silos": ["alpha", "beta", "gamma"],
        "schema": {
            "patient": "id",
            "target": {"kind": "classes", "column": "y", "values": ["no", "yes"]},
            "columns": [{"kind": "numeric", "name": "x", "lower": -1.0, "upper": 1.0, "missing_indicator": False}],
        },
        "model": {"kind": "mlp", "hidden": [4]},
        "training": {
            "rounds": 2000,
            "local_steps": STEPS,
            "sampling_rate": 0.2,
            "clip_norm": 1.0,
            "noise_multiplier": 4.0,
            "target_weight": 0.5,
            "learning_rate": 0.1,
        },
        "privacy": {"delta": 1e-5},
        "secure_aggregation": {
            "threshold": 3,
            "minimum_cohort": 3,
            "colluders": 1,
            "clip": 4.0,
            "fraction_bits": 20,
        },
    }
)


class Memory:
    """Whole numbers that a forked worker shares with its parent and that its death leaves in place."""

    NAMES = ("leaves", "steps", "rounds", "ticks")

    def __init__(self) -> None:
        self._numbers = np.frombuffer(mmap.mmap(-1, 8 * len(self.NAMES)), dtype=np.int64)

    def get(self, name: str) -> int:
        return int(self._numbers[self.NAMES.index(name)])

    def put(self, name: str, value: int) -> None:
        self._numbers[self.NAMES.index(name)] = value
        self._numbers[-1] += 1


class Counting:
    """The trainer's stop signal, which it looks at before every step: so it counts the steps that began."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def is_set(self) -> bool:
        self._memory.put("steps", self._memory.get("steps") + 1)
        return False


def make_trainer() -> Trainer:
    generator = np.random.default_rng(7)
    data = Dataset(
        features=generator.uniform(-1, 1, (20, 1)).astype(np.float32),
        targets=generator.integers(0, 2, 20),
        patients=tuple(str(number).encode() for number in range(20)),
    )
    return Trainer(PLAN, layout_of(PLAN), data, 0, 20, os.urandom)


def live(path: Path, memory: Memory) -> None:
    """What an agent does from its start on, until it is killed."""
    name, layout, cost = plan_hash(PLAN.body()), layout_of(PLAN), charge(PLAN)
    event = PoissonSubsampledGaussian(4.0, 0.2, STEPS)
    ledger = Ledger.open(path, ORIGIN, SIGNER, now_ms=NOW)
    gate = Gate(ledger, CAPS)

    def done(_: object) -> None:
        memory.put("leaves", ledger.size)

    if (crashed := gate.unresolved) is not None:
        done(gate.abort(crashed.plan, crashed.stage, crashed.round, AbortReason.CRASHED, now_ms=NOW))
    done(gate.open_job(name, PLAN.name, cost.delta, cost.events, now_ms=NOW))
    done(gate.record_dataset(name, bytes(32), schema_hash(PLAN), patient="id", public_size=20, now_ms=NOW))
    trainer = make_trainer()
    model, personal = initial_model(layout, name), initial_personal(layout, name)
    charged = [record.leaf.round for record in ledger.leaves() if isinstance(record.leaf, Reserve)]
    for number in range(max(charged, default=0) + 1, PLAN.training.rounds + 1):
        reservation = gate.reserve(name, 1, number, event, model=bytes(32), now_ms=NOW)
        done(reservation)
        update, personal = trainer.train_round(model, personal, Counting(memory))
        memory.put("rounds", memory.get("rounds") + 1)
        done(gate.commit(reservation, commit_update(b"k" * 32, name, 1, number, update.tobytes()), now_ms=NOW))
        done(gate.release(name, 1, number, sum=sha256(update).digest(), model=bytes(32), now_ms=NOW))


def end(worker: int, memory: Memory, chance: random.Random) -> bool:
    """Kill a worker after some of its deeds and some time more, as far as a slow machine lets it get; False if it died
    before."""
    goal = memory.get("ticks") + chance.choice((0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 30))
    while memory.get("ticks") < goal:
        time.sleep(0.001)
        if os.waitpid(worker, os.WNOHANG)[0]:
            return False
    time.sleep(10 ** chance.uniform(-5, -2))
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    return True


def main(path: Path, lives: int, seed: int) -> None:
    """Let that many workers live and die, and print what the ledger says against what they did."""
    torch.set_num_threads(1)
    memory, chance = Memory(), random.Random(seed)
    before: tuple[bytes, ...] = ()
    faults: list[str] = []
    # What takes long once is done before the first fork.
    charge(PLAN)
    make_trainer()
    for life in range(lives):
        worker = os.fork()
        if worker == 0:
            live(path, memory)
            os._exit(0)
        if not end(worker, memory, chance):
            faults.append(f"life {life}: it ended by itself")
        if not path.exists():
            continue
        ledger = Ledger.read(path, ORIGIN, SIGNER.public_key().public_bytes_raw())
        bodies, leaves = ledger.bodies(), [record.leaf for record in ledger.leaves()]
        charged = sum(isinstance(leaf, Reserve) for leaf in leaves)
        committed = sum(isinstance(leaf, Commit) for leaf in leaves)
        for holds, fault in (
            (bodies[: len(before)] == before, "leaves changed"),
            (len(bodies) >= memory.get("leaves"), "a leaf that was written is gone"),
            (charged * STEPS >= memory.get("steps"), "fewer steps are charged than began"),
            (memory.get("rounds") >= committed, "an update is committed to that was never trained"),
            (charged - committed <= life + 1, "a death costs more than one round"),
        ):
            if not holds:
                faults.append(f"life {life}: {fault}")
        before = bodies
    ledger = Ledger.read(path, ORIGIN, SIGNER.public_key().public_bytes_raw())
    (job,), _ = summarise(record.leaf for record in ledger.leaves())
    steps = memory.get("steps")
    truth = epsilon((PoissonSubsampledGaussian(4.0, 0.2, steps),), 1e-5).pld if steps else 0.0
    report = {
        "faults": faults,
        "leaves": ledger.size,
        "steps": steps,
        "rounds": memory.get("rounds"),
        "charged": job.rounds_charged,
        "epsilon": job.spent.pld,
        "epsilon_of_what_was_trained": truth,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
