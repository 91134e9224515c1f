from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
import pytest

from feddrm.contract import labels
from feddrm.contract.plan import Plan
from feddrm.method.layout import Layout, initial_model, initial_personal, layout_of
from feddrm.method.update import model_hash

MakePlan = Callable[..., Plan]
HASH = bytes(range(32))
FROZEN_SHARED = "0b2c199846b50cd2558268113394bee169695e7e0d654c4c3ce68d4b3948699e"
FROZEN_PERSONAL = "9964f9040e7b66a7ef7fc8a12efa72a8e6099e6f5bbebf003aa19ad6cb09de04"


def test_tensors_follow_from_the_plan(make_plan: MakePlan) -> None:
    layout = layout_of(make_plan(width=4, hidden=(6, 5), labels=("a", "b", "c")))
    assert [(t.name, t.shape, t.scope, t.part) for t in layout.tensors] == [
        ("trunk.0.weight", (6, 4), "shared", "trunk"),
        ("trunk.0.bias", (6,), "shared", "trunk"),
        ("trunk.1.weight", (5, 6), "shared", "trunk"),
        ("trunk.1.bias", (5,), "shared", "trunk"),
        ("routing_head.weight", (3, 5), "shared", "routing"),
        ("routing_head.bias", (3,), "shared", "routing"),
        ("target_head.weight", (3, 5), "personal", "target"),
        ("target_head.bias", (3,), "personal", "target"),
    ]
    assert layout.shared_size == 24 + 6 + 30 + 5 + 15 + 3
    assert layout.personal_size == 18


def test_fingerprint_follows_shapes_and_nothing_else(make_plan: MakePlan) -> None:
    base = layout_of(make_plan()).fingerprint()
    assert layout_of(make_plan(learning_rate=0.9, rounds=7)).fingerprint() == base
    others = [
        make_plan(width=5),
        make_plan(hidden=(7,)),
        make_plan(hidden=(6, 6)),
        make_plan(labels=("a", "b", "c")),
        make_plan(silos=("a", "b", "c", "d")),
    ]
    assert len({base, *(layout_of(plan).fingerprint() for plan in others)}) == 6


def test_fingerprint_sees_scope_and_order(make_plan: MakePlan) -> None:
    layout = layout_of(make_plan())
    swapped = Layout((layout.tensors[1], layout.tensors[0], *layout.tensors[2:]))
    assert swapped.fingerprint() != layout.fingerprint()


def test_split_is_in_order_and_complete(make_plan: MakePlan) -> None:
    layout = layout_of(make_plan())
    vector = np.arange(layout.shared_size)
    parts = layout.split(vector)
    assert list(parts) == [t.name for t in layout.of("shared")]
    assert np.array_equal(np.concatenate([part.reshape(-1) for part in parts.values()]), vector)
    assert parts["trunk.0.weight"][1, 0] == 4


@pytest.mark.parametrize("shape", [(0,), (50,), (52,), (1, 51), (51, 1)])
def test_split_refuses_another_shape(make_plan: MakePlan, shape: tuple[int, ...]) -> None:
    layout = layout_of(make_plan())
    assert layout.shared_size == 51
    with pytest.raises(ValueError, match="shape"):
        layout.split(np.zeros(shape, dtype=np.int64))


def test_initial_weights_are_frozen_bytes(make_plan: MakePlan) -> None:
    """A change of label, order or rounding would part old and new members of one federation."""
    layout = layout_of(make_plan())
    assert hashlib.sha256(initial_model(layout, HASH).astype("<i8").tobytes()).hexdigest() == FROZEN_SHARED
    assert hashlib.sha256(initial_personal(layout, HASH).astype("<i8").tobytes()).hexdigest() == FROZEN_PERSONAL


def test_initial_weights_by_the_definition(make_plan: MakePlan) -> None:
    """Recomputed in exact integers, value by value."""
    layout = layout_of(make_plan())
    expected = []
    for tensor in layout.of("shared"):
        name = tensor.name.encode()
        stream = hashlib.shake_256(labels.INITIAL_MODEL + HASH + len(name).to_bytes(8) + name).digest(4 * tensor.size)
        bound = math.isqrt(2**48 // tensor.fan_in)
        for i in range(tensor.size):
            word = int.from_bytes(stream[4 * i : 4 * i + 4], "little")
            expected.append((word * (2 * bound + 1) >> 32) - bound)
    assert initial_model(layout, HASH).tolist() == expected


def test_initial_weights_are_uniform_within_the_fan_in_bound(make_plan: MakePlan) -> None:
    layout = layout_of(make_plan(width=25, hidden=(400,)))
    weights = layout.split(initial_model(layout, HASH))["trunk.0.weight"] / 2**24
    bound = 1 / math.sqrt(25)
    assert np.abs(weights).max() <= bound
    assert abs(weights.mean()) < 4 * bound / math.sqrt(3 * weights.size)
    assert abs(weights.var() / (bound**2 / 3) - 1) < 0.05


def test_initial_weights_depend_on_plan_and_tensor(make_plan: MakePlan) -> None:
    layout = layout_of(make_plan(hidden=(4, 4)))
    parts = layout.split(initial_model(layout, HASH))
    assert not np.array_equal(parts["trunk.0.weight"], parts["trunk.1.weight"])
    assert model_hash(initial_model(layout, HASH)) != model_hash(initial_model(layout, HASH[::-1]))
    with pytest.raises(ValueError, match="32 bytes"):
        initial_model(layout, b"short")
