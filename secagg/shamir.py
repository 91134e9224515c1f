"""Shamir's t-of-K secret sharing over the prime field of p = 2^521 - 1 (Shamir 1979).

The field is far larger than the 32-byte secrets, so any 32 bytes are a field element and a wrong reconstruction
shows itself by not being one of 256 bits, except with probability 2^-265. The share of the member at position i of U1
(from 0) is the polynomial at x = i + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from secagg.errors import MisuseError, WireError
from secagg.keys import Entropy, draw

PRIME: Final = (1 << 521) - 1
SECRET_SIZE: Final = 32
SHARE_SIZE: Final = 66


def split(secret: bytes, threshold: int, count: int, entropy: Entropy) -> tuple[bytes, ...]:
    """Shares (66 bytes each, big-endian) for x = 1 to `count`; any `threshold` of them give the secret, fewer nothing.

    Args:
        secret: 32 bytes.
        entropy: 66 bytes a coefficient are drawn from it.
    """
    if len(secret) != SECRET_SIZE or not 2 <= threshold <= count:
        raise MisuseError("a secret has 32 bytes, and a threshold lies between 2 and the number of shares")
    coefficients = [_element(entropy) for _ in range(threshold - 1)]
    shares = []
    for x in range(1, count + 1):
        y = 0
        for coefficient in coefficients:
            y = (y + coefficient) * x % PRIME
        shares.append(((y + int.from_bytes(secret)) % PRIME).to_bytes(SHARE_SIZE))
    return tuple(shares)


def _element(entropy: Entropy) -> int:
    """A uniform field element: 521 uniform bits, drawn again in the one case (p itself) that is not one."""
    while True:
        value = int.from_bytes(draw(entropy, SHARE_SIZE)) & PRIME
        if value != PRIME:
            return value


def lagrange_at_zero(points: Sequence[int]) -> tuple[int, ...]:
    """The weights with which shares at the distinct `points` sum to the secret; the same for all secrets.

    Raises:
        MisuseError: a point is zero or appears twice.
    """
    if len(set(points)) != len(points) or not all(0 < x < PRIME for x in points):
        raise MisuseError("share points must be distinct and positive")
    weights = []
    for i, x in enumerate(points):
        numerator = denominator = 1
        for j, other in enumerate(points):
            if i != j:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - x) % PRIME
        weights.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return tuple(weights)


def parse(share: bytes) -> int:
    """A share's field element.

    Raises:
        WireError: not 66 bytes, or not below p.
    """
    value = int.from_bytes(share)
    if len(share) != SHARE_SIZE or value >= PRIME:
        raise WireError("a share that is no field element")
    return value


def combine(weights: Sequence[int], shares: Sequence[bytes]) -> bytes:
    """The secret (32 bytes) from as many shares as its threshold, weighted by `lagrange_at_zero`.

    Raises:
        WireError: a share is malformed, or the result is no 32-byte secret: the shares do not belong together.
    """
    total = sum(weight * parse(share) for weight, share in zip(weights, shares, strict=True)) % PRIME
    try:
        return total.to_bytes(SECRET_SIZE)
    except OverflowError as error:
        raise WireError("shares that do not belong together") from error
