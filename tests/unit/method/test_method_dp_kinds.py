"""Convolutions and GroupNorm under DP-SGD: records do not touch each other, and a sum is its records' rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kinds import IMAGE, KINDS, MakePlan
from trainer_tools import Recorder, batch, dataset, torch, weights

from feddrm.contract.models import LenetGn
from feddrm.contract.plan import Plan
from feddrm.method.blocks import block_for
from feddrm.method.dpsgd import DpSgd, refuse_unsafe
from feddrm.method.layout import layout_of
from feddrm.method.model import build, load_vectors

CONVOLUTIONS = ("lenet_gn", "resnet18_gn")


def engine(plan: Plan, noise: Recorder, divisor: float = 1.0) -> DpSgd:
    module = build(plan)
    load_vectors(module, layout_of(plan), *weights(plan))
    return DpSgd(module, plan.training, divisor=divisor, noise=noise)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_safe_to_train(make_kind: MakePlan, kind: str) -> None:
    refuse_unsafe(build(make_kind(kind)))


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_the_sum_is_exactly_the_rows_of_its_records(make_kind: MakePlan, kind: str) -> None:
    plan = make_kind(kind, clip_norm=0.3)
    data = dataset(3, patients=5, records=1, width=plan.schema_.width, scale=2.0)
    features, targets = batch(data)
    noise = Recorder()
    stepper = engine(plan, noise)

    def summed(rows: list[int]) -> np.ndarray:
        load_vectors(stepper._module._module, layout_of(plan), *weights(plan))
        stepper.step(features[rows], targets[rows], 1)
        return noise.sums.pop()

    whole = summed([0, 1, 2, 3, 4])
    rows = [summed([row]) for row in range(5)]
    assert (sum(rows) == whole).all()
    assert (summed([4, 2, 0, 1, 3]) == whole).all()
    assert all(0.3 * (1 - 2e-3) < np.linalg.norm(row) <= 0.3 for row in rows)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_below_the_clip_the_sum_is_the_plain_gradient(make_kind: MakePlan, kind: str) -> None:
    plan = make_kind(kind, clip_norm=1000.0, target_weight=0.3)
    data = dataset(3, patients=4, records=1, width=plan.schema_.width)
    features, targets = batch(data)
    noise = Recorder()
    engine(plan, noise).step(features, targets, 2)
    plain = build(plan)
    load_vectors(plain, layout_of(plan), *weights(plan))
    target_logits, routing_logits = plain(features)
    cross_entropy = torch.nn.functional.cross_entropy
    loss = 0.3 * cross_entropy(target_logits, targets, reduction="sum")
    loss = loss + 0.7 * cross_entropy(routing_logits, torch.full((4,), 2), reduction="sum")
    gradients = torch.autograd.grad(loss, list(plain.parameters()))
    expected = np.concatenate([gradient.numpy().reshape(-1) for gradient in gradients])
    assert np.allclose(noise.sums[0], expected, atol=2e-3)


@pytest.mark.parametrize("divisor", [1.0, 200.0])
@pytest.mark.parametrize(
    ("image", "model"),
    [
        ({"height": 17, "width": 19}, {"channels": [3, 5], "hidden": 7, "units": 3}),
        ({"channels": 3, "height": 20, "width": 16}, {"channels": [6, 16], "hidden": 30, "units": 84}),
        ({"channels": 1, "height": 28, "width": 28}, {"channels": [1, 1], "hidden": 1, "units": 1}),
    ],
)
def test_images_of_odd_shapes_keep_records_apart(
    make_kind: MakePlan, image: dict[str, Any], model: dict[str, Any], divisor: float
) -> None:
    plan = make_kind("lenet_gn", image=IMAGE | image)
    plan = plan.model_copy(update={"model": LenetGn.model_validate({"kind": "lenet_gn", **model})})
    engine(plan, Recorder(), divisor).check_rows(plan.schema_.width, 2)


@pytest.mark.parametrize("most", [1 << 18, 1 << 20])
def test_a_residual_network_keeps_records_apart_in_blocks_of_any_size(
    make_kind: MakePlan, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    from feddrm.method import blocks

    monkeypatch.setattr(blocks, "_WRITTEN", most)
    plan = make_kind("resnet18_gn")
    stepper = engine(plan, Recorder())
    assert stepper.block == (1 if most == 1 << 18 else 4)
    stepper.check_rows(plan.schema_.width, 2)


def test_blocks_follow_from_public_numbers_and_stay_small_enough() -> None:
    assert [block_for(divisor) for divisor in (0.1, 64.0, 65.0, 1e9)] == [64, 64, 128, 1024]
    assert [block_for(64.0, written) for written in (0, 3000, 1 << 20, 11_000_000, 1 << 30)] == [64, 64, 64, 4, 1]
