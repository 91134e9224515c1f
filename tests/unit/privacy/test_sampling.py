from __future__ import annotations

import math

import pytest

from privacy.sampling import pick_record, poisson_mask

PATIENTS = [f"patient {n}".encode() for n in range(20_000)]


def test_removing_one_patient_moves_no_other() -> None:
    key = b"k" * 32
    whole = dict(zip(PATIENTS[:500], poisson_mask(key, PATIENTS[:500], 0.3), strict=True))
    for gone in (0, 250, 499):
        rest = PATIENTS[:gone] + PATIENTS[gone + 1 : 500]
        assert all(whole[p] == drawn for p, drawn in zip(rest, poisson_mask(key, rest, 0.3), strict=True))
    assert all(pick_record(key, p, 7) == pick_record(key, p, 7) for p in PATIENTS[:10])


@pytest.mark.parametrize("rate", [0.001, 0.04, 0.5, 0.999])
def test_the_rate_is_kept(rate: float) -> None:
    expected = rate * len(PATIENTS)
    spread = math.sqrt(expected * (1 - rate))
    assert abs(poisson_mask(b"r" * 32, PATIENTS, rate).sum() - expected) < 5 * spread


def test_batch_sizes_vary_as_poisson_sampling_does() -> None:
    # A fixed batch size would have no variance: that is not the mechanism that is accounted.
    sizes = [int(poisson_mask(bytes([n]) * 32, PATIENTS[:1000], 0.1).sum()) for n in range(200)]
    variance = sum((size - 100) ** 2 for size in sizes) / 200
    assert 60 < variance < 125


def test_rate_one_takes_everybody_and_the_smallest_rate_nobody() -> None:
    assert poisson_mask(b"k" * 32, PATIENTS, 1.0).all()
    assert not poisson_mask(b"k" * 32, PATIENTS, 5e-324).any()


def test_draws_of_two_patients_and_of_two_steps_are_independent() -> None:
    key = poisson_mask(b"a" * 32, PATIENTS, 0.5), poisson_mask(b"b" * 32, PATIENTS, 0.5)
    agreement = (key[0] == key[1]).mean()
    assert abs(agreement - 0.5) < 5 * 0.5 / math.sqrt(len(PATIENTS))
    assert abs((key[0][:-1] == key[0][1:]).mean() - 0.5) < 5 * 0.5 / math.sqrt(len(PATIENTS))


def test_records_are_uniform_and_independent_of_the_selection() -> None:
    key = b"u" * 32
    counts = [0] * 5
    chosen = poisson_mask(key, PATIENTS, 0.5)
    for patient, selected in zip(PATIENTS, chosen, strict=True):
        if selected:
            counts[pick_record(key, patient, 5)] += 1
    expected = sum(counts) / 5
    assert sum((count - expected) ** 2 / expected for count in counts) < 23.5  # 99.99 % of chi-square with 4


def test_a_patient_that_appears_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        poisson_mask(b"k" * 32, [b"a", b"b", b"a"], 0.5)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0000001, math.nan])
def test_rates_out_of_range_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        poisson_mask(b"k" * 32, PATIENTS[:3], rate)


def test_keys_and_counts_are_checked() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        poisson_mask(b"short", PATIENTS[:3], 0.5)
    with pytest.raises(ValueError, match="32 bytes"):
        pick_record(b"", b"a", 3)
    with pytest.raises(ValueError, match="at least one"):
        pick_record(b"k" * 32, b"a", 0)
    assert pick_record(b"k" * 32, b"a", 1) == 0


def test_an_empty_list_gives_an_empty_mask() -> None:
    assert poisson_mask(b"k" * 32, [], 0.5).shape == (0,)
