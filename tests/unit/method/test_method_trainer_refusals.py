"""Traps of the private trainer: networks, gradients and records that are refused, or come to nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.nn import functional
from trainer_tools import (
    Going,
    MakeEntropy,
    MakePlan,
    Recorder,
    batch,
    dataset,
    engine,
    torch,
    weights,
)

from feddrm.contract.errors import InputError
from feddrm.features import Dataset
from feddrm.method.blocks import block_for
from feddrm.method.dpsgd import DpSgd
from feddrm.method.layout import layout_of
from feddrm.method.model import build
from feddrm.method.trainer import Trainer, TrainingStopped

# What is refused


class Normed(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 6)
        self.scanner_norm = layer

    def forward(self, features: Any) -> tuple[Any, Any]:
        phi = self.scanner_norm(self.trunk(features))
        return phi[:, :2], phi[:, 2:]


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(6), nn.BatchNorm1d(6, track_running_stats=False), nn.SyncBatchNorm(6), nn.LazyBatchNorm1d()],
)
def test_batch_norm_is_refused_by_name(make_plan: MakePlan, layer: nn.Module) -> None:
    with pytest.raises(InputError, match=r"scanner_norm is a .*BatchNorm"):
        DpSgd(Normed(layer), make_plan().training, divisor=1.0, noise=Recorder())


def test_instance_norm_with_running_statistics_is_refused(make_plan: MakePlan) -> None:
    layer = nn.InstanceNorm1d(6, track_running_stats=True)
    with pytest.raises(InputError, match="scanner_norm"):
        DpSgd(Normed(layer), make_plan().training, divisor=1.0, noise=Recorder())


def test_buffers_and_frozen_parameters_are_refused(make_plan: MakePlan) -> None:
    plan = make_plan()
    module = build(plan)
    module.register_buffer("seen", torch.zeros(1))
    with pytest.raises(InputError, match="seen"):
        DpSgd(module, plan.training, divisor=1.0, noise=Recorder())
    frozen = build(plan)
    frozen.trunk[0].bias.requires_grad_(False)
    with pytest.raises(InputError, match=r"trunk\.0\.bias is frozen"):
        DpSgd(frozen, plan.training, divisor=1.0, noise=Recorder())


def test_group_norm_is_accepted(make_plan: MakePlan) -> None:
    noise = Recorder()
    stepper = DpSgd(Normed(nn.GroupNorm(2, 6)), make_plan(clip_norm=0.01).training, divisor=1.0, noise=noise)
    stepper.step(*batch(dataset(1)), 0)
    assert 0 < np.linalg.norm(noise.sums[0]) <= 36 * 0.01


def test_gradients_cannot_accumulate(make_plan: MakePlan) -> None:
    stepper, _ = engine(make_plan(), Recorder())
    features, _ = batch(dataset(1))

    def backward() -> None:
        stepper._module(features)[0].sum().backward()

    stepper._module.train()
    backward()
    with pytest.raises(ValueError, match="accumulation"):
        backward()


def test_one_backward_pass_cannot_be_released_twice(make_plan: MakePlan) -> None:
    stepper, _ = engine(make_plan(), Recorder())
    features, targets = batch(dataset(1, patients=block_for(1.0), records=1))
    target_logits, routing_logits = stepper._module(features)
    (functional.cross_entropy(target_logits, targets) + routing_logits.sum()).backward()
    stepper._optimizer.clip_and_accumulate(64)
    with pytest.raises(ValueError, match="not initialized"):
        stepper._optimizer.clip_and_accumulate(64)
    stepper._optimizer.step()
    with pytest.raises(ValueError, match="not initialized"):
        stepper._optimizer.step()


def test_a_trainer_needs_targets_and_the_plan_s_width(make_plan: MakePlan, make_entropy: MakeEntropy) -> None:
    plan = make_plan()
    data = dataset(1)
    for bad in (Dataset(data.features, None, data.patients), dataset(1, width=5)):
        with pytest.raises(InputError):
            Trainer(plan, layout_of(plan), bad, 0, 10, make_entropy(b"k"))
    for index, size in ((3, 10), (-1, 10), (0, 0)):
        with pytest.raises(ValueError, match="out of range"):
            Trainer(plan, layout_of(plan), data, index, size, make_entropy(b"k"))


# What must not stop or poison a round


@pytest.mark.parametrize("poison", [3e38, -3e38, np.inf, np.nan])
def test_a_record_with_a_non_finite_gradient_counts_as_zero(make_plan: MakePlan, poison: float) -> None:
    plan = make_plan(clip_norm=0.3)
    noise = Recorder()
    clean, bad = dataset(7), dataset(7)
    bad.features[5] = poison
    stepper, module = engine(plan, noise)
    stepper.step(*batch(bad), 0)
    keep = np.arange(len(clean)) != 5
    assert clean.targets is not None
    other, _ = engine(plan, noise)
    other.step(torch.from_numpy(clean.features[keep]), torch.from_numpy(clean.targets[keep]), 0)
    poisoned, expected = noise.sums
    assert np.isfinite(poisoned).all()
    assert np.linalg.norm(poisoned - expected) <= (0 if not np.isfinite(poison) else 0.3) + 1e-6
    assert all(torch.isfinite(p).all() for p in module.parameters())


def test_a_stop_is_seen_before_each_step(make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder) -> None:
    plan = make_plan(local_steps=5)
    trainer = Trainer(plan, layout_of(plan), dataset(1), 0, 10, make_entropy(b"s"))
    with pytest.raises(TrainingStopped):
        trainer.train_round(*weights(plan), Going(checks=2))
    assert len(recorder.sums) == 2
    update, _ = trainer.train_round(*weights(plan), Going())
    assert len(recorder.sums) == 7
    assert np.isfinite(update).all()


def test_a_round_starts_from_its_arguments_and_not_from_the_round_before(
    make_plan: MakePlan, make_entropy: MakeEntropy
) -> None:
    """After a lost round the silo trains again from the old model; nothing of the lost one may remain."""
    plan = make_plan(local_steps=2)
    used = Trainer(plan, layout_of(plan), dataset(1), 0, 10, lambda size: bytes(size))
    fresh = Trainer(plan, layout_of(plan), dataset(1), 0, 10, lambda size: bytes(size))
    used.train_round(*weights(plan, 3.0), Going())
    first = used.train_round(*weights(plan), Going())
    second = fresh.train_round(*weights(plan), Going())
    assert first[0].tobytes() == second[0].tobytes()
    assert first[1].tobytes() == second[1].tobytes()


def test_a_hospital_without_a_usable_record_trains_on_noise(make_plan: MakePlan, make_entropy: MakeEntropy) -> None:
    plan = make_plan(local_steps=2)
    nobody = Dataset(np.zeros((0, 4), dtype=np.float32), np.zeros(0, dtype=np.int64), [])
    update, _ = Trainer(plan, layout_of(plan), nobody, 0, 10, make_entropy(b"k")).train_round(*weights(plan), Going())
    assert np.isfinite(update).all()
    assert np.abs(update).min() > 0
