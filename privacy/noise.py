"""Gaussian noise from a cryptographic keystream, with its whole tail.

Why not the usual generators: torch's CPU generator repeats for seeds equal mod 2**32, and a Gaussian made of 24-bit
uniforms ends at 5.4 sigma, where the missing tail alone outweighs delta (design section 7).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Entropy = Callable[[int], bytes]
Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

KEY_BYTES: Final = 32
_PAIRS: Final = 1 << 13
_REFINE_BELOW: Final = np.uint64(1 << 32)


class GaussianSource:
    """Draws Gaussian noise under fresh AES-256-CTR keys.

    Every call takes its own key from `entropy` and forgets it, so that there is no generator state which a fork, a
    copy or a restored snapshot of this object could repeat; only `entropy` must not repeat itself.

    Args:
        entropy: returns the number of random bytes asked for; `os.urandom` in production.
    """

    __slots__ = ("_entropy",)

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def sample(self, count: int, std: float, grid: float) -> Floats:
        """Return float64[count] of N(0, std**2), each rounded to a multiple of `grid`.

        To release a noised sum use `add`: it rounds the sum together with the noise.

        Raises:
            ValueError: count below 0; std not positive and finite; grid not positive or above 2**-20 * std; or
                `entropy` returned too few bytes.
        """
        return self.add(np.zeros(count), std, grid)

    def add(self, values: npt.ArrayLike, std: float, grid: float) -> Floats:
        """Return `values` + N(0, std**2) a coordinate, rounded to a multiple of `grid`, as a flat float64 array.

        The rounding comes after the noise: it is post-processing, so that it changes no sensitivity, and it removes
        the low bits through which floating-point sums betray their inputs (Mironov 2012, CCS).

        Raises:
            ValueError: as `sample`, or a value is not finite.
        """
        flat = np.asarray(values, dtype=np.float64).reshape(-1)
        check_scale(std, grid)
        if not np.isfinite(flat).all():
            raise ValueError("a value to be noised is not finite")
        result = np.empty(flat.size, dtype=np.float64)
        filled = 0
        for chunk in self._standard(flat.size):
            end = filled + chunk.size
            np.multiply(chunk, std, out=chunk)
            chunk += flat[filled:end]
            result[filled:end] = snap(chunk, grid)
            filled = end
        return result

    def _standard(self, count: int) -> Iterator[Floats]:
        # Chunks that stay in cache: the passes over them cost half of what they do over one long array.
        stream = Keystream(self._entropy)
        while count > 0:
            pairs = min(_PAIRS, (count + 1) // 2)
            radius = stream.words(pairs)
            angle = stream.words(pairs)
            chunk = box_muller(radius, angle, stream.words)
            yield chunk[:count]
            count -= chunk.size


def box_muller(radius: Words, angle: Words, more: Callable[[int], Words]) -> Floats:
    """Turn n pairs of 64-bit words into 2n standard Gaussians (Box and Muller 1958).

    The radius is sqrt(-2 ln u) and only small u make large radii, so u keeps its relative precision down there: a
    word is read as (w + 1/2) / 2**64, and one below 2**32 (probability 2**-32) is continued by a further word. The
    largest radius is 13.4 sigma; P(beyond) = 2**-129, against 2**-53 (8.6 sigma) with plain 53-bit uniforms, which
    10**6 coordinates in 10**4 steps would turn into a missing mass of 10**-6.

    Args:
        radius: uint64[n].
        angle: uint64[n]; the upper 53 bits are used.
        more: returns further uint64 words for radii that need them.
    """
    uniform = (radius.astype(np.float64) + 0.5) * 2.0**-64
    # float64(2**64 - 1) + 0.5 rounds up to 2**64: u = 1, radius 0, which is the right limit.
    small = np.flatnonzero(radius < _REFINE_BELOW)
    if small.size:
        further = (more(small.size).astype(np.float64) + 0.5) * 2.0**-64
        uniform[small] = (radius[small].astype(np.float64) + further) * 2.0**-64
    np.log(uniform, out=uniform)
    uniform *= -2.0
    np.sqrt(uniform, out=uniform)
    turn = (angle >> np.uint64(11)).astype(np.float64)
    turn *= 2.0 * math.pi * 2.0**-53
    result = np.empty(2 * radius.size, dtype=np.float64)
    np.cos(turn, out=result[: radius.size])
    np.sin(turn, out=result[radius.size :])
    result[: radius.size] *= uniform
    result[radius.size :] *= uniform
    return result


def snap(values: Floats, grid: float) -> Floats:
    """Round to the nearest multiple of `grid` (ties to even); shape and float64 kept."""
    snapped: Floats = np.rint(values / grid)
    snapped *= grid
    return snapped


def grid_for(std: float) -> float:
    """The largest power of two that is at most 2**-20 * std: exact in binary, so that multiples of it are too."""
    if not (math.isfinite(std) and std > 0):
        raise ValueError("the standard deviation must be positive and finite")
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - 20)


def check_scale(std: float, grid: float) -> None:
    """Raise ValueError unless 0 < grid <= 2**-20 * std and both are finite."""
    if not (math.isfinite(std) and std > 0):
        raise ValueError("the standard deviation must be positive and finite")
    if not 0 < grid <= math.ldexp(std, -20):
        raise ValueError("the grid must be positive and at most 2**-20 of the standard deviation")


class Keystream:
    """AES-256-CTR under one fresh key."""

    __slots__ = ("_encryptor",)

    def __init__(self, entropy: Entropy) -> None:
        key = entropy(KEY_BYTES)
        if len(key) != KEY_BYTES:
            raise ValueError(f"entropy returned {len(key)} bytes instead of {KEY_BYTES}")
        # The key is used once, so the counter may start at zero.
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> Words:
        """The next `count` words of the stream, uint64[count]."""
        stream = self._encryptor.update(bytes(8 * count))
        return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)
