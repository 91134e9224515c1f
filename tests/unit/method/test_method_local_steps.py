"""What shapes local steps after the noise: proximal pull, momentum, decay; and steps in turns (FedRep)."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from trainer_tools import Going, MakeEntropy, MakePlan, Recorder, batch, dataset, engine, torch, weights

from feddrm.method.layout import layout_of
from feddrm.method.trainer import Trainer
from feddrm.method.update import to_float


def run(plan, entropy, number=1, *, patients=12):  # type: ignore[no-untyped-def]
    """(update of the shared weights, change of the personal ones) of a round at a silo of `patients`."""
    model, personal = weights(plan)
    trainer = Trainer(plan, layout_of(plan), dataset(1, patients=patients), 1, 20, entropy)
    update, after = trainer.train_round(model, personal, Going(), number)
    return update, to_float(after) - to_float(personal)


def test_the_pull_is_added_to_what_was_clipped_and_noised(
    make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder
) -> None:
    """w' = w - rate * (released + mu * (w - w0)): inside the clip the sums would show it, and its size would be bounded
    by C."""
    rate, mu = 0.25, 3.0
    plan = make_plan(local_steps=3, sampling_rate=1.0, learning_rate=rate, proximal_mu=mu, clip_norm=0.01)
    layout = layout_of(plan)
    update, own = run(plan, make_entropy(b"k"))
    moved = np.zeros(layout.shared_size)
    for total in recorder.sums:
        moved += -rate * (total[: layout.shared_size] / 20 + mu * moved)
    assert np.allclose(update, moved, atol=1e-6)
    assert np.linalg.norm(recorder.sums[-1]) <= 12 * 0.01
    # Personal weights are nobody else's: nothing pulls them.
    assert np.allclose(own, -rate * np.sum(recorder.sums, axis=0)[layout.shared_size :] / 20, atol=1e-6)


def test_a_pull_of_one_over_the_rate_leaves_one_step(
    make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder
) -> None:
    plan = make_plan(local_steps=4, sampling_rate=1.0, learning_rate=0.25, proximal_mu=4.0)
    update, _ = run(plan, make_entropy(b"k"))
    last = recorder.sums[-1][: layout_of(plan).shared_size]
    assert np.allclose(update, -0.25 * last / 20, atol=1e-6)


def test_steps_in_turns_move_the_head_first_and_the_rest_then(
    make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder
) -> None:
    plan = make_plan(local_steps=5, head_steps=2, sampling_rate=1.0, learning_rate=0.5, clip_norm=0.01, momentum=0.5)
    layout = layout_of(plan)
    update, own = run(plan, make_entropy(b"k"))
    assert len(recorder.sums) == 5
    for number, total in enumerate(recorder.sums):
        shared, personal = total[: layout.shared_size], total[layout.shared_size :]
        still, moving = (shared, personal) if number < 2 else (personal, shared)
        assert not still.any(), "what stands still takes no part of the clip"
        # 12 patients pull with C each, and not all in one direction.
        assert 0.01 < np.linalg.norm(moving) <= 12 * 0.01
    steps = [total / 20 for total in recorder.sums]

    def moved(parts: list[np.ndarray]) -> np.ndarray:
        velocity, place = np.zeros_like(parts[0]), np.zeros_like(parts[0])
        for part in parts:
            velocity = 0.5 * velocity + part
            place = place - 0.5 * velocity
        return place

    assert np.allclose(own, moved([step[layout.shared_size :] for step in steps[:2]]), atol=1e-6)
    assert np.allclose(update, moved([step[: layout.shared_size] for step in steps[2:]]), atol=1e-6)


def test_what_stands_still_gets_no_noise(make_plan: MakePlan, make_entropy: MakeEntropy) -> None:
    plan = make_plan(
        hidden=(40,), local_steps=2, head_steps=1, sampling_rate=1e-6, clip_norm=0.5, noise_multiplier=2.0,
        learning_rate=1e-6,
    )  # fmt: skip
    layout = layout_of(plan)
    update, own = run(plan, make_entropy(b"k"))
    unit = 1e-6 * 0.5 * 2.0 / (1e-6 * 20)
    for values in (update, own):
        z = values / unit
        assert abs((z**2).sum() - z.size) < 5 * np.sqrt(2 * z.size)
    assert update.size == layout.shared_size


@pytest.mark.parametrize("personal", [["target_head.weight"], ["target_head.bias"], ["trunk.0.bias", "target_head.*"]])
def test_a_weight_may_stand_still_without_its_bias(make_plan: MakePlan, personal: list[str]) -> None:
    """The clip is over what moves: of a layer's outer product only that part is left."""
    plan = make_plan(clip_norm=100.0)
    noise = Recorder()
    stepper, module = engine(plan, noise)
    stepper.step(*batch(dataset(2)), 0)
    whole = noise.sums.pop()
    stepper, module = engine(plan, noise)
    names = [name for name, _ in module.named_parameters()]
    moving = [name for name in names if name in personal or any(name.startswith(p.rstrip("*")) for p in personal)]
    stepper.begin(0.1, active=moving)
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    stepper.step(*batch(dataset(2)), 0)
    part = noise.sums.pop()
    place = 0
    for name, parameter in module.named_parameters():
        size = parameter.numel()
        expected = whole[place : place + size] if name in moving else np.zeros(size)
        assert np.allclose(part[place : place + size], expected, atol=1e-3)
        assert torch.equal(parameter, before[name]) == (name not in moving)
        place += size


def test_the_rate_decays_over_rounds_and_momentum_ends_with_one(
    make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder
) -> None:
    plan = make_plan(rounds=4, decay="cosine", learning_rate=0.5, sampling_rate=1.0)
    sizes = [np.linalg.norm(run(plan, make_entropy(b"k"), number)[0]) for number in (1, 2, 3, 4)]
    expected = [(1 + np.cos(np.pi * r / 4)) / 2 for r in range(4)]
    assert np.allclose(np.array(sizes) / sizes[0], expected, rtol=1e-4)
    assert plan.training.rate(1) == 0.5


def test_a_plan_says_what_is_wrong_with_its_local_steps(make_plan: MakePlan) -> None:
    for wrong, said in (
        ({"learning_rate": 0.5, "proximal_mu": 2.1}, "proximal_mu: times learning_rate more than 1"),
        ({"local_steps": 3, "head_steps": 3}, "head_steps: of the 3 local_steps none is left"),
        ({"momentum": 1.0}, "less than or equal to 0.999"),
        ({"decay": "linear"}, "'none' or 'cosine'"),
    ):
        with pytest.raises(ValidationError, match=said):
            make_plan(**wrong)


def test_steps_in_turns_need_both_kinds_of_tensors(make_kind: MakePlan) -> None:
    for personal in ([], ["*"]):
        with pytest.raises(ValidationError, match="needs personal tensors and shared ones"):
            make_kind("mlp", personal=personal, local_steps=2, head_steps=1)


def test_what_is_signed_says_nothing_of_fields_at_their_defaults(make_plan: MakePlan) -> None:
    body = make_plan(momentum=0.0, decay="none", proximal_mu=0.0, head_steps=0).body()
    assert body == make_plan().body()
    assert not any(key in body for key in (b"momentum", b"decay", b"proximal", b"head_steps"))
    assert b'"proximal_mu":0.1' in make_plan(proximal_mu=0.1).body()
