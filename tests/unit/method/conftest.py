from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from feddrm.contract.plan import Plan

if TYPE_CHECKING:
    from trainer_tools import Recorder

MakePlan = Callable[..., Plan]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Torch with one thread, where it has been loaded: more of them slow each other down."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """In the place of the trainer's noise source."""
    from trainer_tools import Recorder

    from feddrm.method import trainer

    made = Recorder()
    monkeypatch.setattr(trainer, "GaussianSource", lambda entropy: made)
    return made


@pytest.fixture
def make_plan() -> MakePlan:
    """A plan over numeric columns x0, x1, ...; keywords override training values."""

    def make(
        *,
        silos: Sequence[str] = ("site-a", "site-b", "site-c"),
        width: int = 4,
        hidden: Sequence[int] = (6,),
        labels: Sequence[str] = ("no", "yes"),
        **training: Any,
    ) -> Plan:
        values = {
            "rounds": 3,
            "local_steps": 1,
            "sampling_rate": 0.5,
            "clip_norm": 0.7,
            "noise_multiplier": 1.5,
            "target_weight": 0.4,
            "learning_rate": 0.25,
        }
        columns = [
            {"kind": "numeric", "name": f"x{i}", "lower": -1.0, "upper": 1.0, "missing_indicator": False}
            for i in range(width)
        ]
        target = {"kind": "classes", "column": "y", "values": list(labels)}
        return Plan.model_validate(
            {
                "federation": "test",
                "name": "job",
                "roster_version": 1,
                "silos": list(silos),
                "schema": {"patient": "id", "target": target, "columns": columns},
                "model": {"kind": "mlp", "hidden": list(hidden)} if hidden else {"kind": "linear"},
                "training": values | training,
                "privacy": {"delta": 1e-5},
                "secure_aggregation": {
                    "threshold": len(silos),
                    "minimum_cohort": len(silos),
                    "colluders": 1,
                    "clip": 4.0,
                    "fraction_bits": 20,
                },
            }
        )

    return make


@pytest.fixture
def make_kind() -> MakePlan:
    """A plan of a kind of model, over small images."""
    from kinds import plan_of

    return plan_of


@pytest.fixture
def make_entropy() -> Callable[[bytes], Callable[[int], bytes]]:
    """Reproducible entropy: successive pieces of one SHAKE-256 stream for each seed."""

    def make(seed: bytes) -> Callable[[int], bytes]:
        calls = 0

        def entropy(size: int) -> bytes:
            nonlocal calls
            calls += 1
            return hashlib.shake_256(seed + calls.to_bytes(8)).digest(size)

        return entropy

    return make
