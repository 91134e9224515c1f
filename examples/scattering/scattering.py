"""A public feature extractor for colour images, trained on nobody: wavelet scattering, as torch.export writes it.

With privacy, a linear or small model on handcrafted features does better than a convolutional network that is trained
from nothing (Tramer and Boneh 2021, arXiv 2011.11660). Scattering (Bruna and Mallat 2013, arXiv 1203.1513): an image is
convolved with Morlet wavelets, of eight orientations at two scales, and its moduli averaged over the cells of a grid of
4 x 4; the brightness' moduli are convolved and averaged once more.

    python scattering.py FOLDER        writes FOLDER/scattering.pt2 and FOLDER/cifar10.toml, which names it by its hash

The file's bytes follow from the version of torch, its features do not: write it once, and give everybody that one.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import math
from pathlib import Path

import torch
from torch import Tensor, nn

ORIENTATIONS = 8
SCALES = 2
GRID = 4
MARGIN = 4
SIDE = 32


def morlet_bank(side: int) -> Tensor:
    """Wavelets in the frequency domain, float32[SCALES * ORIENTATIONS, side, side], real and zero at frequency zero."""
    frequencies = 2 * math.pi * torch.fft.fftfreq(side, dtype=torch.float64)
    across, along = torch.meshgrid(frequencies, frequencies, indexing="ij")
    wavelets = []
    for scale in range(SCALES):
        width, centre = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
        for orientation in range(ORIENTATIONS):
            angle = math.pi * orientation / ORIENTATIONS
            wave, envelope = torch.zeros(2, side, side, dtype=torch.float64)
            # An image repeats, and with it the spectrum of what it is convolved with.
            for right in (-2 * math.pi, 0, 2 * math.pi):
                for down in (-2 * math.pi, 0, 2 * math.pi):
                    u = math.cos(angle) * (along + right) + math.sin(angle) * (across + down)
                    v = math.cos(angle) * (across + down) - math.sin(angle) * (along + right)
                    slant = (v * ORIENTATIONS / 4) ** 2
                    wave += torch.exp(-(width**2) * ((u - centre) ** 2 + slant) / 2)
                    envelope += torch.exp(-(width**2) * (u**2 + slant) / 2)
            wavelets.append(wave - wave[0, 0] / envelope[0, 0] * envelope)
    return torch.stack(wavelets).to(torch.float32)


class Scattering(nn.Module):
    """Features float32[n, 1840] of images float32[n, 3, SIDE, SIDE]."""

    psi: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("psi", morlet_bank(SIDE + 2 * MARGIN))

    def forward(self, images: Tensor) -> Tensor:
        """Averages, first order of brightness and two colour differences, second order of brightness."""
        red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
        bright = torch.cat([(red + green + blue) / 3, red - blue, (red + blue) / 2 - green], dim=1)
        whole = nn.functional.pad(bright, [MARGIN] * 4, mode="reflect")
        first = torch.fft.ifft2(torch.fft.fft2(whole)[:, :, None] * self.psi).abs()
        fine = torch.fft.fft2(first[:, :1, :ORIENTATIONS])
        second = torch.fft.ifft2(fine[:, :, :, None] * self.psi[ORIENTATIONS:]).abs()
        return torch.cat([cells(whole).flatten(1), level(cells(first)), level(cells(second))], dim=1)


def cells(maps: Tensor) -> Tensor:
    """Means over the cells of the grid, [..., GRID, GRID], of maps [..., SIDE + 2 * MARGIN, SIDE + 2 * MARGIN]."""
    inside = maps[..., MARGIN:-MARGIN, MARGIN:-MARGIN]
    size = SIDE // GRID
    return inside.reshape(*inside.shape[:-2], GRID, size, GRID, size).mean((-3, -1))


def level(moduli: Tensor) -> Tensor:
    """Mean 0 and variance 1 for each scale of brightness; colours are relative to it, so that pale images stay pale."""
    groups = moduli.reshape(moduli.shape[0], moduli.shape[1], -1, ORIENTATIONS * GRID * GRID)
    bright = groups[:, :1]
    mean, deviation = bright.mean(-1, keepdim=True), bright.std(-1, keepdim=True) + 1e-3
    centred = torch.cat([(bright - mean) / deviation, groups[:, 1:] / (mean + 1e-3)], dim=1)
    return centred.flatten(1)


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Write a scattering extractor and settings of feddrm compare for it.")
    parser.add_argument("folder", type=Path, help="is made if it does not exist")
    folder: Path = parser.parse_args().folder
    buffer = io.BytesIO()
    program = torch.export.export(Scattering().eval(), (torch.zeros(1, 3, SIDE, SIDE),))
    for node in program.graph.nodes:
        # Where this file lies is nobody's business, and would be part of the hash.
        node.meta.pop("stack_trace", None)
    torch.export.save(program, buffer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scattering.pt2").write_bytes(buffer.getvalue())
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    settings = (Path(__file__).parent / "cifar10.toml").read_text(encoding="utf-8")
    (folder / "cifar10.toml").write_text(settings.replace("SHA256", digest), encoding="utf-8")
    print(f"{folder}/scattering.pt2, SHA-256 {digest}\n{folder}/cifar10.toml: feddrm compare {folder}/cifar10.toml")


if __name__ == "__main__":
    main()
