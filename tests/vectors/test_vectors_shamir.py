"""Shamir over 2^521 - 1. There are no public vectors, so known answers are worked out by hand and by another method."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from secagg.shamir import PRIME, combine, lagrange_at_zero, parse, split


def draws(*coefficients: int) -> Iterator[bytes]:
    return (value.to_bytes(66) for value in coefficients)


def shared(secret: int, coefficients: tuple[int, ...], count: int) -> list[int]:
    source = draws(*coefficients)
    shares = split(secret.to_bytes(32), len(coefficients) + 1, count, lambda size: next(source))
    return [parse(share) for share in shares]


def test_shamir_by_hand() -> None:
    """1 + 2x; 5 + 3x + x^2, whose first drawn coefficient is the highest; 7 - x, which wraps around p."""
    assert shared(1, (2,), 3) == [3, 5, 7]
    assert shared(5, (1, 3), 4) == [9, 15, 23, 33]
    assert shared(7, (PRIME - 1,), 9) == [6, 5, 4, 3, 2, 1, 0, PRIME - 1, PRIME - 2]
    assert lagrange_at_zero([1, 2, 3]) == (3, PRIME - 3, 1)
    assert lagrange_at_zero([2, 3, 5]) == (5, PRIME - 5, 1)
    assert combine(lagrange_at_zero([2, 4, 3]), [v.to_bytes(66) for v in (15, 33, 23)]) == (5).to_bytes(32)


def newton_at_zero(points: list[int], values: list[int]) -> int:
    """The interpolating polynomial at zero by Newton's divided differences: no Lagrange weight is involved."""
    table = list(values)
    for level in range(1, len(points)):
        for i in range(len(points) - 1, level - 1, -1):
            table[i] = (table[i] - table[i - 1]) * pow(points[i] - points[i - level], -1, PRIME) % PRIME
    value = 0
    for coefficient, point in zip(reversed(table), reversed(points), strict=True):
        value = (value * -point + coefficient) % PRIME
    return value


@pytest.mark.parametrize(("threshold", "count"), [(2, 3), (3, 3), (4, 5), (5, 6), (67, 100)])
def test_shamir_known_answers(threshold: int, count: int) -> None:
    """Coefficients from SHAKE-256; shares against Python's own integers, secrets against Newton's method."""
    seed = hashlib.shake_256(b"feddrm secagg vectors 1/shamir").digest(32 + 66 * threshold)
    secret, coefficients = seed[:32], []
    source = iter([seed[32 + 66 * index :][:66] for index in range(threshold - 1)])
    coefficients = [int.from_bytes(seed[32 + 66 * index :][:66]) % 2**521 for index in range(threshold - 1)]
    shares = split(secret, threshold, count, lambda size: next(source))
    powers = [(threshold - 1 - index, c) for index, c in enumerate(coefficients)]
    for x, share in enumerate(shares, 1):
        expected = int.from_bytes(secret) + sum(c * x**power for power, c in powers)
        assert int.from_bytes(share) == expected % (2**521 - 1)
    points = list(range(count, count - threshold, -1))
    values = [int.from_bytes(shares[x - 1]) for x in points]
    assert newton_at_zero(points, values) == int.from_bytes(secret)
    assert combine(lagrange_at_zero(points), [shares[x - 1] for x in points]) == secret
    assert newton_at_zero(points[1:], values[1:]) != int.from_bytes(secret)
