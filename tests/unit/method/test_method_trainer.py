"""Traps of the private trainer: what moves, by how much noise, and who is drawn. A recorder stands for the noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
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

from feddrm.method.dpsgd import DpSgd
from feddrm.method.layout import layout_of
from feddrm.method.model import build, load_vectors
from feddrm.method.trainer import Trainer
from feddrm.method.update import to_float

# One clip, over everything that moves


def test_the_clip_covers_every_parameter_and_nothing_moves_besides(
    make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder
) -> None:
    """Fails for a second optimiser, a target head outside the clip, or a layer left out."""
    plan = make_plan(sampling_rate=1.0, learning_rate=0.5)
    layout = layout_of(plan)
    model, personal = weights(plan)
    update, after = Trainer(plan, layout, dataset(1), 1, 20, make_entropy(b"k")).train_round(model, personal, Going())
    (total,) = recorder.sums
    assert total.size == layout.shared_size + layout.personal_size
    expected = -0.5 * total / (1.0 * 20)
    assert np.allclose(update, expected[: layout.shared_size], atol=1e-7)
    assert np.allclose(to_float(after - personal), expected[layout.shared_size :], atol=1e-6)
    assert (np.abs(total) > 0).mean() > 0.5


def test_both_losses_are_added_before_the_one_clip(make_plan: MakePlan) -> None:
    """Clipping the heads apart would reach sqrt(2) C, a second backward pass 2 C."""
    noise = Recorder()
    stepper, _ = engine(make_plan(clip_norm=0.01, target_weight=0.5), noise)
    stepper.step(*batch(dataset(2), slice(0, 1)), 0)
    assert 0.01 * (1 - 3e-4) < np.linalg.norm(noise.sums[0]) <= 0.01


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_below_the_clip_the_sum_is_the_plain_gradient(make_plan: MakePlan, lam: float) -> None:
    plan = make_plan(clip_norm=100.0, target_weight=lam)
    noise = Recorder()
    stepper, _ = engine(plan, noise)
    features, targets = batch(dataset(3))
    stepper.step(features, targets, 2)
    plain = build(plan)
    load_vectors(plain, layout_of(plan), *weights(plan))
    target_logits, routing_logits = plain(features)
    silos = torch.full((len(features),), 2)
    loss = lam * functional.cross_entropy(target_logits, targets, reduction="sum")
    loss = loss + (1 - lam) * functional.cross_entropy(routing_logits, silos, reduction="sum")
    gradients = torch.autograd.grad(loss, list(plain.parameters()), allow_unused=True, materialize_grads=True)
    expected = np.concatenate([gradient.numpy().reshape(-1) for gradient in gradients])
    assert np.allclose(noise.sums[0], expected, atol=1e-4)


def test_records_contribute_independently_of_each_other(make_plan: MakePlan) -> None:
    """Fails for a mean or class-weighted loss, whose normaliser ties records together."""
    plan = make_plan(clip_norm=0.3)
    data = dataset(4)
    noise = Recorder()
    together, _ = engine(plan, noise)
    together.step(*batch(data), 0)
    for row in range(len(data)):
        alone, _ = engine(plan, noise)
        alone.step(*batch(data, slice(row, row + 1)), 0)
    whole, *singles = noise.sums
    assert np.allclose(whole, np.sum(singles, axis=0), atol=1e-6)


# Noise


def test_noise_is_scaled_to_clip_and_multiplier_on_a_fine_grid(make_plan: MakePlan) -> None:
    noise = Recorder()
    stepper, _ = engine(make_plan(clip_norm=0.7, noise_multiplier=1.5), noise)
    stepper.step(*batch(dataset(1)), 0)
    ((std, grid),) = noise.scales
    assert std == pytest.approx(1.05)
    assert 0 < grid <= std * 2.0**-20


def test_an_empty_batch_still_adds_noise_of_the_right_size(make_plan: MakePlan, make_entropy: MakeEntropy) -> None:
    plan = make_plan(
        hidden=(60, 60), sampling_rate=1e-6, clip_norm=0.5, noise_multiplier=2.0, learning_rate=1e-6, local_steps=1
    )
    layout = layout_of(plan)
    model, personal = weights(plan)
    update, after = Trainer(plan, layout, dataset(1), 0, 10, make_entropy(b"e")).train_round(model, personal, Going())
    # learning rate / (q m) = 0.1 times noise of standard deviation 1
    z = update / 0.1
    n = z.size
    assert n > 3000
    assert abs((z**2).sum() - n) < 5 * np.sqrt(2 * n)
    assert np.count_nonzero(after - personal) == layout.personal_size


def test_noise_comes_from_the_entropy_and_not_from_torch(make_plan: MakePlan, make_entropy: MakeEntropy) -> None:
    plan = make_plan()

    def run(seed: bytes, torch_seed: int) -> bytes:
        torch.manual_seed(torch_seed)
        update, personal = Trainer(plan, layout_of(plan), dataset(1), 0, 10, make_entropy(seed)).train_round(
            *weights(plan), Going()
        )
        return update.tobytes() + personal.tobytes()

    assert run((1).to_bytes(8), 1) == run((1).to_bytes(8), 2)
    # torch's own generator would repeat for seeds that agree mod 2**32.
    assert run((1).to_bytes(8), 1) != run((1 + 2**32).to_bytes(8), 1)


def test_each_step_of_a_round_has_fresh_draws_and_fresh_noise(make_plan: MakePlan, make_entropy: MakeEntropy) -> None:
    plan = make_plan(sampling_rate=1e-6, local_steps=2, learning_rate=1e-6)
    layout = layout_of(plan)
    trainer = Trainer(plan, layout, dataset(1), 0, 10, make_entropy(b"x"))
    first, _ = trainer.train_round(*weights(plan), Going())
    second, _ = trainer.train_round(*weights(plan), Going())
    assert np.abs(np.corrcoef(first, second)[0, 1]) < 0.7
    one, _ = Trainer(
        make_plan(sampling_rate=1e-6, local_steps=1, learning_rate=1e-6), layout, dataset(1), 0, 10, make_entropy(b"x")
    ).train_round(*weights(plan), Going())
    # Two steps of equal noise would be exactly twice the first.
    assert not np.allclose(first, 2 * one, rtol=1e-3)


# Sampling and the divisor


def test_the_divisor_is_public_and_not_the_batch(
    make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder
) -> None:
    plan = make_plan(sampling_rate=1.0)
    layout = layout_of(plan)
    small = Trainer(plan, layout, dataset(1), 0, 10, make_entropy(b"d")).train_round(*weights(plan), Going())[0]
    large = Trainer(plan, layout, dataset(1), 0, 1000, make_entropy(b"d")).train_round(*weights(plan), Going())[0]
    assert np.allclose(small, 100 * large, atol=1e-5)
    more = dataset(1, patients=24)
    update = Trainer(plan, layout, more, 0, 10, make_entropy(b"d")).train_round(*weights(plan), Going())[0]
    assert np.allclose(update, -plan.training.learning_rate * recorder.sums[-1][: layout.shared_size] / 10, atol=1e-6)


def test_batches_are_poisson_at_the_plan_s_rate_with_one_record_a_patient(
    make_plan: MakePlan, make_entropy: MakeEntropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(sampling_rate=0.3, local_steps=400)
    patients, records = 40, 3
    data = dataset(1, patients=patients, records=records)
    data.features[:, 0] = np.arange(len(data))
    seen: list[npt.NDArray[np.int64]] = []
    monkeypatch.setattr(
        DpSgd, "step", lambda self, features, targets, silo: seen.append(features[:, 0].numpy().astype(np.int64))
    )
    Trainer(plan, layout_of(plan), data, 0, 40, make_entropy(b"p")).train_round(*weights(plan), Going())
    sizes = np.array([len(rows) for rows in seen])
    assert len(sizes) == 400
    for rows in seen:
        assert len(set((rows % patients).tolist())) == len(rows)
    # A loader that splits the data into equal parts would have no variance.
    expected, variance = 0.3 * patients, 0.3 * 0.7 * patients
    assert abs(sizes.mean() - expected) < 5 * np.sqrt(variance / 400)
    assert abs(sizes.var() / variance - 1) < 0.35
    counts = np.bincount(np.concatenate(seen), minlength=len(data))
    assert abs(counts / (400 * 0.3 / records) - 1).max() < 0.8
