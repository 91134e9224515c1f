"""Sensitivity, measured: removing one patient moves a clipped sum by at most C, and by exactly that patient's row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kinds import KINDS
from trainer_tools import (
    Entropy,
    Floats,
    Going,
    MakeEntropy,
    MakePlan,
    Recorder,
    batch,
    clipped_sum,
    dataset,
    engine,
    torch,
    weights,
    without,
)

from feddrm.contract.plan import Plan
from feddrm.contract.stages import PersonalHead
from feddrm.features import Dataset
from feddrm.method import personal as personal_module
from feddrm.method.dpsgd import DpSgd
from feddrm.method.layout import layout_of
from feddrm.method.model import build, load_vectors
from feddrm.method.personal import fine_tune
from feddrm.method.update import from_float

# Mechanisms: what a patient's data go into before noise is added, and the most by which one patient may move it.

Sum = Callable[[Plan, Dataset, Entropy, Recorder, float], Floats]


def trained(plan: Plan, data: Dataset, entropy: Entropy, recorder: Recorder, scale: float) -> Floats:
    return clipped_sum(plan, data, recorder, entropy, scale)


def tuned(
    plan: Plan,
    data: Dataset,
    entropy: Entropy,
    recorder: Recorder,
    scale: float,
    tensors: tuple[str, ...] = ("target_head.*",),
    steps: int = 1,
) -> Floats:
    """The first step's sum, of one or more."""
    training = plan.training
    terms = PersonalHead(
        steps=steps,
        sampling_rate=training.sampling_rate,
        noise_multiplier=training.noise_multiplier,
        clip_norm=training.clip_norm,
        learning_rate=training.learning_rate,
        tensors=tensors,
        momentum=0.9 if steps > 1 else 0.0,
        average_from=1,
    )
    recorder.sums.clear()
    fine_tune(plan, terms, layout_of(plan), *weights(plan, scale), data, 20, entropy, Going())
    assert len(recorder.sums) == steps
    return recorder.sums[0]


def tuned_whole(plan: Plan, data: Dataset, entropy: Entropy, recorder: Recorder, scale: float) -> Floats:
    return tuned(plan, data, entropy, recorder, scale, tensors=("*",))


def tuned_on(plan: Plan, data: Dataset, entropy: Entropy, recorder: Recorder, scale: float) -> Floats:
    return tuned(plan, data, entropy, recorder, scale, steps=3)


def shared_part(plan: Plan, data: Dataset, entropy: Entropy, recorder: Recorder, scale: float) -> Floats:
    """A step that moves the shared tensors only, of everybody."""
    stepper, module = engine(plan, recorder)
    load_vectors(module, layout_of(plan), *weights(plan, scale))
    stepper.begin(1.0, active=[tensor.name for tensor in layout_of(plan).of("shared")])
    stepper.step(*batch(data, slice(None)), 1)
    return recorder.sums.pop()


# Mechanism: (what it sums, kind of model, what else is in the plan).
MECHANISMS: dict[str, tuple[Sum, str, dict[str, Any]]] = {
    "training a multilayer perceptron": (trained, "mlp", {}),
    "training a linear model": (trained, "linear", {}),
    "training a LeNet": (trained, "lenet_gn", {}),
    "training a residual network": (trained, "resnet18_gn", {}),
    "training what follows a frozen extractor": (trained, "frozen", {}),
    "training with everything shared": (trained, "lenet_gn", {"personal": []}),
    "training with personal norms": (trained, "lenet_gn", {"personal": ["trunk.*norm*"]}),
    "training personal tensors in their turn": (trained, "mlp", {"head_steps": 1, "local_steps": 2}),
    "training shared tensors in their turn": (shared_part, "lenet_gn", {}),
    "training with pull and momentum": (trained, "mlp", {"proximal_mu": 1.0, "momentum": 0.9, "local_steps": 2}),
    "tuning the head of a multilayer perceptron": (tuned, "mlp", {}),
    "tuning a head with momentum and a mean": (tuned_on, "mlp", {}),
    "tuning the head of a linear model": (tuned, "linear", {}),
    "tuning the head of a LeNet": (tuned, "lenet_gn", {}),
    "tuning a copy of a whole LeNet": (tuned_whole, "lenet_gn", {}),
}


LONG = {"training a residual network"}


def test_every_kind_of_model_has_its_sensitivity_measured() -> None:
    assert {kind for _, kind, _ in MECHANISMS.values()} == set(KINDS)


@pytest.fixture
def recorders(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(personal_module, "GaussianSource", lambda entropy: recorder)
    return recorder


@pytest.mark.parametrize(
    "mechanism", [pytest.param(name, marks=[pytest.mark.soak] if name in LONG else []) for name in MECHANISMS]
)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 100.0]),
    spread=st.sampled_from([1e-2, 1.0, 100.0, 1e6]),
    rate=st.sampled_from([0.3, 1.0]),
    lam=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_removing_one_patient_moves_the_clipped_sum_by_at_most_c(
    make_kind: MakePlan,
    make_entropy: MakeEntropy,
    recorders: Recorder,
    mechanism: str,
    seed: int,
    scale: float,
    spread: float,
    rate: float,
    lam: float,
) -> None:
    summed, kind, more = MECHANISMS[mechanism]
    plan = make_kind(kind, sampling_rate=rate, target_weight=lam, clip_norm=0.7, **more)
    records = 3 if kind in ("linear", "mlp", "frozen") else 1
    data = dataset(seed, patients=5, records=records, width=plan.width, scale=spread)
    if summed is shared_part:
        plan = plan.model_copy(update={"training": plan.training.model_copy(update={"sampling_rate": 1.0})})
    key = seed.to_bytes(8)
    whole = summed(plan, data, make_entropy(key), recorders, scale)
    moved = []
    for patient in sorted(set(data.patients)):
        rest = summed(plan, without(data, patient), make_entropy(key), recorders, scale)
        moved.append(float(np.linalg.norm(whole - rest)))
    assert max(moved) <= plan.training.clip_norm
    if rate == scale == spread == 1.0:
        assert max(moved) > 0


def at_the_kink(rng: np.random.Generator, width: int) -> tuple[Floats, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(x, shared, personal): a record that the hidden unit gets at zero, but for what float32 rounds away."""
    x = rng.integers(-64, 65, width) / 64
    w = np.rint(rng.uniform(-0.22, 0.22, width) * 2**24).astype(np.int64)
    dot = int(w @ np.rint(x * 64).astype(np.int64)) / 64
    head = from_float(np.array([3.0, -3.0, -3.0, 0.0, 0.0, 0.0]))
    return x, np.concatenate([w, [-round(dot)], head]), from_float(np.array([-3.0, 3.0, 0.0, 0.0]))


def test_at_a_relu_s_kink_one_patient_still_moves_the_sum_by_no_more_than_its_own_row(make_plan: MakePlan) -> None:
    """A batch of another size rounds the pre-activation otherwise, the unit switches, and the gradients of all patients
    who have this record turn round: 3 C for one patient of four, before gradients came in blocks of one shape."""
    plan = make_plan(width=20, hidden=(1,), clip_norm=0.5)
    rng = np.random.default_rng(0)
    noise = Recorder()
    module = build(plan)
    stepper = DpSgd(module, plan.training, divisor=1.0, noise=noise)
    for _ in range(40):
        x, shared, personal = at_the_kink(rng, 20)
        sums = []
        for patients in range(1, 7):
            load_vectors(module, layout_of(plan), shared, personal)
            features = torch.from_numpy(np.repeat(x[None].astype(np.float32), patients, axis=0))
            stepper.step(features, torch.zeros(patients, dtype=torch.int64), 0)
            sums.append(noise.sums.pop())
        for patients, total in enumerate(sums, start=1):
            assert np.linalg.norm(total - (sums[patients - 2] if patients > 1 else 0)) <= 0.5
            assert (total == patients * sums[0]).all()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    patients=st.sampled_from([1, 2, 63, 64, 65, 150]),
    clip=st.sampled_from([1e-6, 0.3, 1e6]),
)
def test_the_sum_is_exactly_the_rows_of_its_patients(
    make_plan: MakePlan, seed: int, patients: int, clip: float
) -> None:
    """Bit for bit, over blocks and in any order: so removing a patient removes that patient's row and nothing else."""
    plan = make_plan(clip_norm=clip, hidden=(7, 5))
    data = dataset(seed, patients=patients, records=1, scale=3.0)
    noise = Recorder()

    def summed(rows: npt.NDArray[np.int64]) -> Floats:
        stepper, _ = engine(plan, noise)
        features, targets = batch(data)
        stepper.step(features[rows], targets[rows], 1)
        return noise.sums.pop()

    everybody = np.arange(patients)
    whole = summed(everybody)
    left_out = seed % patients
    alone = summed(everybody[left_out : left_out + 1])
    assert (summed(np.delete(everybody, left_out)) + alone == whole).all()
    assert (summed(everybody[::-1].copy()) == whole).all()
    assert np.linalg.norm(alone) <= clip


def test_the_bound_is_reached_so_that_the_measurement_means_something(
    make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder
) -> None:
    plan = make_plan(sampling_rate=1.0, clip_norm=0.01)
    data = dataset(5)
    whole = clipped_sum(plan, data, recorder, make_entropy(b"k"))
    rest = clipped_sum(plan, without(data, b"patient-3"), recorder, make_entropy(b"k"))
    assert 0.01 * (1 - 3e-4) < np.linalg.norm(whole - rest) <= 0.01


def test_a_patient_with_many_records_counts_once(
    make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder
) -> None:
    plan = make_plan(sampling_rate=1.0, clip_norm=0.01)
    rng = np.random.default_rng(6)
    data = Dataset(rng.standard_normal((50, 4)).astype(np.float32), np.zeros(50, dtype=np.int64), [b"only"] * 50)
    assert np.linalg.norm(clipped_sum(plan, data, recorder, make_entropy(b"k"))) <= 0.01
