"""Shifts of images: every 8-bit step against Pillow, and which silo gets which."""

from __future__ import annotations

import numpy as np
import pytest

from feddrm.compare import shifts

Image = pytest.importorskip("PIL.Image")
ImageEnhance = pytest.importorskip("PIL.ImageEnhance")


def every_kind_of_pixel() -> np.ndarray:
    """A grid over the cube, its corners and grays included, and random pixels."""
    grid = np.array(np.meshgrid(*[np.arange(0, 256, 15)] * 3)).reshape(3, -1).T
    grays = np.repeat(np.arange(256)[:, None], 3, axis=1)
    near = np.clip(grays + np.random.default_rng(0).integers(-2, 3, grays.shape), 0, 255)
    random = np.random.default_rng(1).integers(0, 256, (30_000, 3))
    pixels = np.concatenate([grid, grays, near, random]).astype(np.uint8)
    return pixels[: len(pixels) // 16 * 16].reshape(1, -1, 16, 3)


PIXELS = every_kind_of_pixel()


def test_gray_is_pillows() -> None:
    assert np.array_equal(shifts.gray(PIXELS[0]), np.asarray(Image.fromarray(PIXELS[0]).convert("L")))


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 1.5])
def test_saturation_is_pillows(factor: float) -> None:
    expected = np.asarray(ImageEnhance.Color(Image.fromarray(PIXELS[0])).enhance(factor))
    assert np.array_equal(shifts.saturate(PIXELS, factor)[0], expected)


def test_hsv_is_pillows_there_and_back() -> None:
    expected = np.asarray(Image.fromarray(PIXELS[0]).convert("HSV"))
    assert np.array_equal(np.stack(shifts.to_hsv(PIXELS[0]), axis=-1), expected)
    back = np.asarray(Image.fromarray(expected, "HSV").convert("RGB"))
    assert np.array_equal(shifts.from_hsv(*(expected[..., part] for part in range(3))), back)


@pytest.mark.parametrize(("turn", "steps"), [(-0.1, -25), (0.1, 25), (0.0, 0)])
def test_hue_turns_and_wraps(turn: float, steps: int) -> None:
    hsv = np.asarray(Image.fromarray(PIXELS[0]).convert("HSV")).copy()
    hsv[..., 0] = (hsv[..., 0].astype(int) + steps) % 256
    expected = np.asarray(Image.fromarray(hsv, "HSV").convert("RGB"))
    assert np.array_equal(shifts.turn_hue(PIXELS, turn)[0], expected)


def test_gamma_keeps_black_and_white_and_is_monotone() -> None:
    ramp = np.arange(256, dtype=np.uint8)
    for power in shifts.GAMMA:
        out = shifts.gamma(ramp, power)
        assert (out[0], out[-1]) == (0, 255)
        assert (np.diff(out.astype(int)) >= 0).all()
    assert shifts.gamma(ramp, 0.6)[100] > 100 > shifts.gamma(ramp, 1.4)[100]


def test_a_silos_bits_choose_its_colours() -> None:
    image = PIXELS[:, :64]
    for silo in range(8):
        expected = shifts.saturate(image, (0.5, 1.5)[silo >> 2 & 1])
        expected = shifts.turn_hue(expected, (-0.1, 0.1)[silo >> 1 & 1])
        assert np.array_equal(shifts.colour(image, silo), shifts.gamma(expected, (0.6, 1.4)[silo & 1]))
    assert len({shifts.colour(image, silo).tobytes() for silo in range(8)}) == 8
    assert shifts.colour(image, 8).tobytes() == shifts.colour(image, 0).tobytes()


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    images = PIXELS.reshape(-1, 4, 4, 3)[:50]
    whole = shifts.colour(images, 5)
    monkeypatch.setattr(shifts, "_BLOCK", 7)
    assert np.array_equal(shifts.colour(images, 5), whole)


def test_light_by_the_bits() -> None:
    x = np.array([0.0, 0.25, 1.0], dtype=np.float32)
    assert np.array_equal(shifts.light(x, 0), x)
    assert np.allclose(shifts.light(x, 1), 0.6 * x)
    assert np.allclose(shifts.light(x, 2), x + 0.25 * (1 - x))
    assert np.allclose(shifts.light(x, 7), (0.6 * x + 0.25 * (1 - 0.6 * x)) ** 1.6)
    assert shifts.light(x, 7).dtype == np.float32
