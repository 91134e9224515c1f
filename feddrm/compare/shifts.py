"""Feature shift: what makes the images of one silo look different from another's, by the bits of the silo's number.

Colour images keep to 8-bit arithmetic, as image libraries do: gray is (19595 R + 38470 G + 7471 B) / 2**16 (ITU-R
BT.601), hue and saturation are those of the hexcone model (Smith 1978), rounded to 8 bits between the steps. The tests
hold every step against Pillow, pixel by pixel.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Shift = Literal["none", "colour", "light"]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

SATURATION: Final = (0.5, 1.5)
HUE: Final = (-0.1, 0.1)
GAMMA: Final = (0.6, 1.4)
CONTRAST: Final = (1.0, 0.6)
BACKGROUND: Final = (0.0, 0.25)
LIGHT_GAMMA: Final = (1.0, 1.6)
# Images at once: float temporaries of some 100 MB.
_BLOCK: Final = 2048


def colour(images: Bytes, silo: int) -> Bytes:
    """The paper's shift (arXiv 2509.23049) of 8-bit images uint8[n, h, w, 3] at a silo: saturation, hue, gamma.

    Returns:
        uint8[n, h, w, 3].
    """
    shifted = np.empty_like(images)
    for start in range(0, len(images), _BLOCK):
        block = saturate(images[start : start + _BLOCK], SATURATION[silo >> 2 & 1])
        shifted[start : start + _BLOCK] = gamma(turn_hue(block, HUE[silo >> 1 & 1]), GAMMA[silo & 1])
    return shifted


def light(images: Floats, silo: int) -> Floats:
    """Contrast, background and gamma of gray images float32[n, ...] in [0, 1] at a silo."""
    shifted = images * CONTRAST[silo & 1]
    background = BACKGROUND[silo >> 1 & 1]
    shifted = shifted + background * (1.0 - shifted)
    power: Floats = (shifted ** LIGHT_GAMMA[silo >> 2 & 1]).astype(np.float32)
    return power


def gray(images: Bytes) -> Bytes:
    """Luma uint8[...] of uint8[..., 3]."""
    red, green, blue = (images[..., channel].astype(np.uint32) for channel in range(3))
    luma: Bytes = ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).astype(np.uint8)
    return luma


def saturate(images: Bytes, factor: float) -> Bytes:
    """gray + factor * (image - gray), cut to 0..255 and rounded down."""
    base = gray(images)[..., None].astype(np.float32)
    return np.clip(base + np.float32(factor) * (images.astype(np.float32) - base), 0, 255).astype(np.uint8)


def gamma(images: Bytes, power: float) -> Bytes:
    """(x / 255) ** power of every channel; 255 stays 255."""
    table = np.array([int(255.999 * (value / 255.0) ** power) for value in range(256)], dtype=np.uint8)
    return table[images]


def turn_hue(images: Bytes, turn: float) -> Bytes:
    """Every pixel's hue moved by `turn` of the full circle, which 8 bits divide into 256 parts."""
    hue, saturation, value = to_hsv(images)
    return from_hsv(hue + np.uint8(int(turn * 255) & 0xFF), saturation, value)


def to_hsv(images: Bytes) -> tuple[Bytes, Bytes, Bytes]:
    """Hue, saturation and value, uint8[...] each, of uint8[..., 3]. Gray has hue 0."""
    red, green, blue = (images[..., channel].astype(np.float32) for channel in range(3))
    largest = np.maximum(np.maximum(red, green), blue)
    chroma = largest - np.minimum(np.minimum(red, green), blue)
    coloured = chroma > 0
    divisor = np.where(coloured, chroma, np.float32(1))
    # Single and double precision where Pillow has them: hues lie on the boundaries of their 256 parts.
    from_red, from_green, from_blue = (
        ((largest - channel) / divisor).astype(np.float64) for channel in (red, green, blue)
    )
    sextant = np.where(
        red == largest,
        from_blue - from_green,
        np.where(green == largest, 2.0 + from_red - from_blue, 4.0 + from_green - from_red),
    )
    turned = np.mod(_single(sextant) / 6.0 + 1.0, 1.0)
    hue = np.where(coloured, _single(turned) * 255.0, 0.0)
    saturation = (chroma / np.maximum(largest, 1)).astype(np.float64) * 255.0
    return hue.astype(np.uint8), saturation.astype(np.uint8), largest.astype(np.uint8)


def from_hsv(hue: Bytes, saturation: Bytes, value: Bytes) -> Bytes:
    """uint8[..., 3] of hue, saturation and value, uint8[...] each."""
    place = hue.astype(np.float32) * np.float32(6.0) / np.float32(255.0)
    sextant = np.floor(place)
    within = place - sextant
    share = saturation.astype(np.float32) / np.float32(255.0)
    bright = value.astype(np.float32)
    low, falling, rising = (
        np.floor(bright * (1.0 - share * part) + np.float32(0.5)).astype(np.uint8)
        for part in (np.float32(1.0), within, 1.0 - within)
    )
    kinds = sextant.astype(np.intp) % 6
    # Red, green, blue in each sixth of the circle.
    choices = (
        (value, falling, low, low, rising, value),
        (rising, value, value, falling, low, low),
        (low, low, rising, value, value, falling),
    )
    return np.stack([np.choose(kinds, channel) for channel in choices], axis=-1)


def _single(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return values.astype(np.float32).astype(np.float64)
