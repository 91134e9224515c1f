"""Stage 1 on MNIST for `bench.routing_fit`: eight silos that differ in labels (Dirichlet 0.3) and in brightness.

The mechanism is that of feddrm.method.dpsgd (Poisson draws of patients, both losses, one clip over all layers, one
noise, uniform means of the silos' updates), for a small network with GroupNorm that the deployment has no plan for.
Layers are written as products of unfolded inputs, so that the gradients' norms cost little more than a plain backward
pass; what the real engine does for the last bit is left out. Trunks are cached where the caller says.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from bench.fit_data import Federation
from bench.report import progress
from feddrm.contract.training import Training
from feddrm.features import Dataset
from privacy.noise import GaussianSource, grid_for

WIDTH = 32
# Weight of the brightness that goes round GroupNorm.
BRIGHTNESS = 2.8
# Its event is PoissonSubsampledGaussian(noise_multiplier, 0.05, 150).
TRAINING = Training(
    rounds=30,
    local_steps=5,
    sampling_rate=0.05,
    clip_norm=1.0,
    noise_multiplier=1.19,
    target_weight=0.9,
    learning_rate=1.5,
    momentum=0.8,
    decay="cosine",
)
# Without privacy nothing is clipped either, and gradients have their own lengths.
PLAIN = TRAINING.model_copy(update={"learning_rate": 0.3, "decay": "none"})
# Without momentum either: the plain steps that the method's paper and its prototypes start from.
STAGE1 = {"private": TRAINING, "plain": PLAIN, "sgd": PLAIN.model_copy(update={"momentum": 0.0})}
# Outputs and inputs of each layer; a last column is the bias.
_TRUNK = {"first": (16, 16), "second": (32, 144), "third": (WIDTH, 133)}

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Trained:
    """What stage 1 left: weights float32[outputs, inputs + 1] by name, and a target head for each silo."""

    shared: dict[str, npt.NDArray[np.float32]]
    heads: tuple[npt.NDArray[np.float32], ...]


def federation(folder: Path) -> Federation:
    """The fixed split of the data sets' README, each silo's images shifted.

    Args:
        folder: holds mnist.npz and split_dirichlet03_seed2025.npz.

    Raises:
        FileNotFoundError: one is missing.
    """
    images = np.load(folder / "mnist.npz")
    split = np.load(folder / "split_dirichlet03_seed2025.npz")
    pixels = np.concatenate([images["x_train"], images["x_test"]])[split["src"]]
    labels = np.concatenate([images["y_train"], images["y_test"]])[split["src"]].astype(np.int64)
    client, train = split["client"].astype(int), split["train"]
    silos, tests = [], []
    for k in range(8):
        x = pixels[client == k].astype(np.float32) / 255.0
        x = x * (1.0, 0.6)[k & 1]
        x = x + (0.0, 0.25)[k >> 1 & 1] * (1.0 - x)
        x = (x ** (1.0, 1.6)[k >> 2 & 1]).astype(np.float32)[:, None]
        y, t = labels[client == k], train[client == k]
        silos.append(Dataset(x[t], y[t], [b"%d" % number for number in np.flatnonzero(t)]))
        tests.append((x[~t], y[~t]))
    return Federation(
        "mnist",
        tuple(silos),
        np.concatenate([x for x, _ in tests]),
        np.concatenate([y for _, y in tests]),
        np.concatenate([np.full(len(y), k) for k, (_, y) in enumerate(tests)]),
        # What a hospital might say in public of its size.
        tuple(int(round(len(silo), -2)) for silo in silos),
    )


def train(data: Federation, seed: int, kind: str, cache: Path | None) -> Trained:
    """30 rounds of 5 steps; from the cache where it has them.

    Args:
        data: of `federation`.
        seed: of initial weights, draws and noise: a benchmark may repeat itself.
        kind: of `STAGE1`; all but "private" without clipping and noise.
        cache: a folder.
    """
    training, private = STAGE1[kind], kind == "private"
    name = hashlib.sha256(repr((training, _TRUNK, BRIGHTNESS, seed, private)).encode()).hexdigest()[:16]
    file = cache / f"mnist-{name}.npz" if cache else None
    if file and file.exists():
        return _unpack(dict(np.load(file)), len(data.silos))
    generator = np.random.default_rng([seed, private])
    noise = GaussianSource(generator.bytes)
    std = TRAINING.noise_multiplier * TRAINING.clip_norm
    shared = {key: _initial(generator, *shape) for key, shape in _TRUNK.items()}
    shared["routing"] = _initial(generator, len(data.silos), WIDTH)
    heads = [_initial(generator, 10, WIDTH)] * len(data.silos)
    images = [torch.from_numpy(silo.features) for silo in data.silos]
    targets = [torch.from_numpy(silo.known_targets()) for silo in data.silos]
    for number in range(TRAINING.rounds):
        after: list[Weights] = []
        for k, size in enumerate(data.sizes):
            weights, velocity = {**shared, "target": heads[k]}, None
            for _ in range(TRAINING.local_steps):
                drawn = torch.from_numpy(np.flatnonzero(generator.random(len(targets[k])) < TRAINING.sampling_rate))
                gradient = _gradient(weights, images[k][drawn], targets[k][drawn], k, clip=private)
                flat = torch.cat([part.reshape(-1) for part in gradient.values()]).double().numpy()
                noised = torch.from_numpy(noise.add(flat, std, grid_for(std)) if private else flat).float()
                velocity = noised if velocity is None else training.momentum * velocity + noised
                rate = training.rate(number + 1) / (training.sampling_rate * size)
                parts = velocity.split([part.numel() for part in gradient.values()])
                weights = {
                    key: value - rate * part.reshape(value.shape)
                    for (key, value), part in zip(weights.items(), parts, strict=True)
                }
            heads[k] = weights.pop("target")
            after.append(weights)
        shared = {key: torch.stack([weights[key] for weights in after]).mean(dim=0) for key in shared}
        progress(f"mnist seed {seed}, {'private' if private else 'no noise'}: round {number + 1} of {TRAINING.rounds}")
    arrays = {key: value.numpy() for key, value in shared.items()}
    arrays |= {f"head {k}": head.numpy() for k, head in enumerate(heads)}
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **arrays)
    return _unpack(arrays, len(data.silos))


def embed(trained: Trained, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """phi float32[n, 32] of float32[n, 1, 28, 28]."""
    weights = {key: torch.from_numpy(value) for key, value in trained.shared.items()}
    with torch.inference_mode():
        return np.concatenate([_embed(weights, part, {}, {}).numpy() for part in torch.from_numpy(images).split(2048)])


def _initial(generator: np.random.Generator, outputs: int, inputs: int) -> torch.Tensor:
    bound = inputs**-0.5
    return torch.from_numpy(generator.uniform(-bound, bound, (outputs, inputs + 1)).astype(np.float32))


def _embed(weights: Weights, images: torch.Tensor, inputs: Weights, outputs: Weights) -> torch.Tensor:
    """The embedding; what went into each layer and what came out of it is kept in `inputs` and `outputs`."""
    count = len(images)

    def layer(name: str, rows: torch.Tensor) -> torch.Tensor:
        inputs[name] = functional.pad(rows, (0, 1), value=1.0)
        outputs[name] = inputs[name] @ weights[name].T
        return outputs[name]

    small = functional.avg_pool2d(images, 2)
    rows = layer("first", functional.unfold(small, 4, padding=1, stride=2).transpose(1, 2))
    maps = functional.relu(functional.group_norm(rows.transpose(1, 2).reshape(count, 16, 7, 7), 4))
    rows = layer("second", functional.unfold(maps, 3, padding=1, stride=2).transpose(1, 2))
    maps = functional.relu(functional.group_norm(rows.transpose(1, 2).reshape(count, 32, 4, 4), 4))
    # GroupNorm takes brightness out, which is what silos differ in: it goes round it.
    bright = [functional.avg_pool2d(images, 14).flatten(1), functional.max_pool2d(images, 28).flatten(1)]
    rows = torch.cat([functional.avg_pool2d(maps, 2).flatten(1), *(BRIGHTNESS * part for part in bright)], dim=1)
    return torch.tanh(layer("third", rows[:, None]))[:, 0]


def _gradient(weights: Weights, images: torch.Tensor, targets: torch.Tensor, silo: int, *, clip: bool) -> Weights:
    """The sum of the records' gradients of both losses, each clipped over all layers at once if so wanted."""
    inputs: Weights = {}
    outputs: Weights = {}
    leaves = {key: value.requires_grad_() for key, value in ((k, v.detach().clone()) for k, v in weights.items())}
    phi = _embed(leaves, images, inputs, outputs)
    for name in ("routing", "target"):
        inputs[name] = functional.pad(phi, (0, 1), value=1.0)[:, None]
        outputs[name] = inputs[name] @ leaves[name].T
    weight = TRAINING.target_weight
    loss = weight * functional.cross_entropy(outputs["target"][:, 0], targets, reduction="sum")
    silos = torch.full_like(targets, silo)
    loss = loss + (1.0 - weight) * functional.cross_entropy(outputs["routing"][:, 0], silos, reduction="sum")
    if not clip:
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    slopes = dict(zip(outputs, torch.autograd.grad(loss, list(outputs.values())), strict=True))
    with torch.no_grad():
        records = {key: slopes[key].transpose(1, 2) @ inputs[key] for key in weights}
        squares = torch.stack([part.square().sum(dim=(1, 2)) for part in records.values()]).sum(dim=0)
        factors = TRAINING.clip_norm / squares.sqrt().clamp(min=TRAINING.clip_norm)
        return {key: torch.einsum("n,noi->oi", factors, part) for key, part in records.items()}


def _unpack(arrays: dict[str, npt.NDArray[np.float32]], silos: int) -> Trained:
    heads = tuple(arrays[f"head {k}"] for k in range(silos))
    return Trained({key: value for key, value in arrays.items() if not key.startswith("head ")}, heads)
