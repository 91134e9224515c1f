"""Splits: every record once, as different as asked for, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from feddrm.compare import splits
from feddrm.contract.errors import InputError

LABELS = np.random.default_rng(0).integers(0, 10, 4000)


def mixes(owners: np.ndarray, silos: int) -> np.ndarray:
    counts = np.array([np.bincount(LABELS[owners == silo], minlength=10) for silo in range(silos)])
    return counts / counts.sum(axis=1, keepdims=True)


def test_dirichlet_gives_every_silo_records_and_repeats_itself() -> None:
    owners = splits.dirichlet(LABELS, 20, 0.3, np.random.default_rng(5))
    assert np.bincount(owners, minlength=20).min() >= splits.SMALLEST_SILO
    assert np.array_equal(owners, splits.dirichlet(LABELS, 20, 0.3, np.random.default_rng(5)))
    assert not np.array_equal(owners, splits.dirichlet(LABELS, 20, 0.3, np.random.default_rng(6)))


def test_a_smaller_alpha_makes_silos_differ_more() -> None:
    spread = [
        mixes(splits.dirichlet(LABELS, 8, alpha, np.random.default_rng(1)), 8).std(axis=0).mean()
        for alpha in (0.3, 1.0, 100.0)
    ]
    assert spread[0] > spread[1] > spread[2]


def test_shards_leave_a_silo_few_classes_and_equal_sizes() -> None:
    owners = splits.shards(LABELS, 10, 2, np.random.default_rng(2))
    sizes = np.bincount(owners, minlength=10)
    assert sizes.sum() == len(LABELS)
    assert sizes.max() - sizes.min() <= 2
    # Two runs of sorted labels touch at most four classes when each crosses one boundary.
    assert max(np.count_nonzero(mix) for mix in mixes(owners, 10)) <= 4


def test_a_class_smaller_than_a_shard_is_not_lost() -> None:
    labels = np.concatenate([np.zeros(400, dtype=np.int64), np.ones(3, dtype=np.int64)])
    owners = splits.shards(labels, 4, 2, np.random.default_rng(0))
    assert np.bincount(owners, minlength=4).sum() == 403


@pytest.mark.parametrize(
    "split", [lambda g: splits.dirichlet(LABELS[:90], 5, 0.1, g), lambda g: splits.shards(LABELS[:90], 5, 2, g)]
)
def test_too_few_records_are_refused(split) -> None:
    with pytest.raises(InputError, match="silos"):
        split(np.random.default_rng(0))


def test_the_training_part_is_of_each_silo_and_never_all() -> None:
    owners = np.array([0] * 100 + [1] * 10 + [2] * 2)
    training = splits.training_part(owners, 0.7, np.random.default_rng(3))
    assert [int(training[owners == silo].sum()) for silo in range(3)] == [70, 7, 1]
    everything = splits.training_part(owners, 1.0, np.random.default_rng(3))
    assert [int(everything[owners == silo].sum()) for silo in range(3)] == [99, 9, 1]
