"""The empirical audit: the true trainer keeps its claim; builds with a defence taken out are found.

A broken build is made here, by putting another part into the trainer. Production code has no switch for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch", reason="the silo extra is not installed")
pytest.importorskip("opacus", reason="the silo extra is not installed")

from feddrm.contract.plan import Plan
from feddrm.method import canaries as canaries_module
from feddrm.method import trainer as trainer_module
from feddrm.method.canaries import audit_data, audit_plan, run
from feddrm.method.draws import Draws
from privacy.accounting import claim, epsilon
from privacy.canary import CANARIES, CanaryRun, CanaryVerdict, inserted, judge
from privacy.events import PoissonSubsampledGaussian
from privacy.noise import GaussianSource

MakePlan = Callable[..., Plan]
MakeEntropy = Callable[[bytes], Callable[[int], bytes]]
Floats = npt.NDArray[np.float64]

# Epsilon 2.96 at delta 1e-6, over 60 steps in 20 rounds.
TRAINING: dict[str, Any] = {
    "rounds": 20,
    "local_steps": 3,
    "sampling_rate": 0.2,
    "noise_multiplier": 2.8,
    "clip_norm": 0.5,
}
DELTA = 1e-6


def audited(plan: Plan, seed: bytes, entropy: Callable[[int], bytes]) -> tuple[CanaryVerdict, CanaryRun]:
    training = plan.training
    steps = training.rounds * training.local_steps
    event = PoissonSubsampledGaussian(training.noise_multiplier, training.sampling_rate, steps)
    rounds: list[None] = []
    scores = run(plan, training.rounds, seed, entropy, lambda: rounds.append(None))
    assert len(rounds) == training.rounds
    cost = claim(epsilon([event], DELTA).pld)
    assert 2 < cost <= 3
    made = CanaryRun("f", "job", "a", seed, event, DELTA, cost, scores)
    return judge(CanaryRun.decode(made.encode())), made


class Weakened:
    """A noise source with so much of the noise."""

    def __init__(self, source: GaussianSource, part: float) -> None:
        self._source = source
        self._part = part

    def add(self, values: npt.ArrayLike, std: float, grid: float) -> Floats:
        if self._part == 0:
            return np.array(values, dtype=np.float64)
        return self._source.add(values, std * self._part, grid * self._part / 2)


class VisitDraws(Draws):
    """Counts every record as a patient of its own."""

    def __init__(self, patients: Any, rate: float, entropy: Callable[[int], bytes]) -> None:
        super().__init__([b"%s, visit %d" % (patient, n) for n, patient in enumerate(patients)], rate, entropy)


@pytest.mark.parametrize("seed", [b"\x01" * 32, b"\x02" * 32, b"\x03" * 32])
def test_the_true_trainer_keeps_its_claim(make_plan: MakePlan, make_entropy: MakeEntropy, seed: bytes) -> None:
    verdict, _ = audited(make_plan(**TRAINING), seed, make_entropy(seed))
    assert verdict.passed
    assert verdict.lower <= verdict.recomputed
    # The canaries are heard all the same: better than a coin.
    assert verdict.correct > 275


def test_scores_have_the_mean_and_the_deviation_of_the_mechanism(
    make_plan: MakePlan, make_entropy: MakeEntropy
) -> None:
    """So the canaries are as loud as the claim allows: a whole clipped gradient in every step that draws them."""
    plan, seed = make_plan(**TRAINING), b"\x04" * 32
    _, made = audited(plan, seed, make_entropy(seed))
    coins, steps = inserted(seed), 60
    noise = 2.8 * np.sqrt(steps)
    spread = np.sqrt(steps * 0.2 * 0.8 + noise**2)
    assert abs(made.scores[coins].mean() - 0.2 * steps) < 5 * spread / np.sqrt(coins.sum())
    assert abs(made.scores[~coins].mean()) < 5 * noise / np.sqrt((~coins).sum())
    assert abs(made.scores[~coins].std() / noise - 1) < 5 / np.sqrt(2 * (~coins).sum())


@pytest.mark.parametrize("part", [0.0, 0.1])
def test_a_build_with_little_or_no_noise_is_refuted(
    make_plan: MakePlan, make_entropy: MakeEntropy, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    monkeypatch.setattr(trainer_module, "GaussianSource", lambda entropy: Weakened(GaussianSource(entropy), part))
    verdict, _ = audited(make_plan(**TRAINING), b"\x05" * 32, make_entropy(b"e"))
    assert not verdict.passed
    assert verdict.lower > verdict.recomputed


def test_a_build_that_takes_visits_for_patients_is_refuted(
    make_plan: MakePlan, make_entropy: MakeEntropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "Draws", VisitDraws)
    monkeypatch.setattr(canaries_module, "_RECORDS", 20)
    verdict, _ = audited(make_plan(**TRAINING), b"\x06" * 32, make_entropy(b"e"))
    assert not verdict.passed


@pytest.mark.parametrize("lam", [0.0, 1.0])
@pytest.mark.parametrize("clip", [1e-6, 1e4])
def test_canaries_are_loud_under_any_plan(
    make_plan: MakePlan, make_entropy: MakeEntropy, monkeypatch: pytest.MonkeyPatch, lam: float, clip: float
) -> None:
    """Without noise every canary in a batch stands out, by the length of the clip and not more."""
    monkeypatch.setattr(trainer_module, "GaussianSource", lambda entropy: Weakened(GaussianSource(entropy), 0.0))
    plan = make_plan(**(TRAINING | {"rounds": 1, "sampling_rate": 1.0, "target_weight": lam, "clip_norm": clip}))
    seed = b"\x07" * 32
    scores = run(plan, 1, seed, make_entropy(b"e"), lambda: None)
    coins = inserted(seed)
    assert (abs(scores[coins] - 3) < 0.02).all()
    assert (abs(scores[~coins]) < 1e-3).all()


def test_the_run_holds_no_record_and_keeps_what_the_claim_depends_on(make_plan: MakePlan) -> None:
    plan = make_plan(**TRAINING)
    audit = audit_plan(plan)
    same = ("rounds", "local_steps", "sampling_rate", "noise_multiplier", "clip_norm", "target_weight")
    assert all(getattr(audit.training, key) == getattr(plan.training, key) for key in same)
    data = audit_data(b"\x08" * 32, 2)
    patients = set(data.patients)
    assert sum(patient.startswith(b"canary") for patient in patients) == inserted(b"\x08" * 32).sum()
    assert len(data.features) == 3 * inserted(b"\x08" * 32).sum() + 200
    assert data.features.shape[1] > CANARIES


def test_a_plan_for_images_is_audited_on_the_run_s_own_network(make_kind: MakePlan) -> None:
    """What works on noised steps is left out: it hides canaries and protects nobody."""
    plan = make_kind(
        "lenet_gn", personal=[], local_steps=3, momentum=0.9, decay="cosine", proximal_mu=1.0, ewc={"strength": 0.1}
    )
    audited = audit_plan(plan)
    assert audited.model.kind == "mlp"
    assert audited.schema_.image is None
    training = audited.training
    assert (training.momentum, training.decay, training.proximal_mu, training.ewc) == (0.0, "none", 0.0, None)
    assert (training.local_steps, training.noise_multiplier) == (3, plan.training.noise_multiplier)
