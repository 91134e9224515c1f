"""The trunks of all kinds of model in torch: one builder a kind, checked against the layout by `model.build`.

A trunk takes features float32[n, width], flat whatever their shape, and returns embeddings float32[n, units]. Its
parameters bear the names of the layout's tensors, without "trunk.". No layer looks at more than one record.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

import torch
from torch import nn
from torch.nn import functional

from feddrm.contract.architecture import Architecture, Shape, groups_of
from feddrm.contract.models import Frozen, LenetGn, Linear, Mlp, ResNet18Gn


@singledispatch
def make_trunk(model: Architecture, shape: Shape) -> nn.Module:
    """The trunk of a model, its parameters not yet loaded.

    Args:
        model: of the plan.
        shape: what the network is given of one record.

    Raises:
        NotImplementedError: no such kind.
    """
    raise NotImplementedError(f"{type(model).__name__} of {shape}")


class Perceptron(nn.ModuleList):
    """Linear layers, each with ReLU. Without layers it returns its input."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """float32[n, units] of float32[n, width]."""
        for layer in self:
            features = functional.relu(layer(features))
        return features


@make_trunk.register
def _perceptron(model: Mlp | Linear | Frozen, shape: Shape) -> nn.Module:
    tensors = [tensor for tensor in model.trunk(shape) if len(tensor.shape) == 2]
    return Perceptron(nn.Linear(tensor.shape[1], tensor.shape[0]) for tensor in tensors)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(groups_of(channels), channels)


class _Lenet(nn.Module):
    def __init__(self, model: LenetGn, shape: Shape) -> None:
        super().__init__()
        sizes = {tensor.name.removeprefix("trunk."): tensor.shape for tensor in model.trunk(shape)}
        first, second = model.channels
        self.shape = shape
        self.conv1 = nn.Conv2d(shape[0], first, 5)
        self.norm1 = _norm(first)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.norm2 = _norm(second)
        self.fc1 = nn.Linear(sizes["fc1.weight"][1], model.hidden)
        self.fc2 = nn.Linear(model.hidden, model.units)
        self.embedding_norm = nn.GroupNorm(1, model.units)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        maps = features.reshape(-1, *self.shape)
        maps = functional.max_pool2d(functional.relu(self.norm1(self.conv1(maps))), 2)
        maps = functional.max_pool2d(functional.relu(self.norm2(self.conv2(maps))), 2)
        hidden = functional.relu(self.fc1(maps.flatten(1)))
        return functional.relu(self.embedding_norm(self.fc2(hidden)))


@make_trunk.register
def _lenet(model: LenetGn, shape: Shape) -> nn.Module:
    return _Lenet(model, shape)


class _Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = _norm(outside)
        self.short: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.short_norm = _norm(outside)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        around = maps if self.short is None else self.short_norm(self.short(maps))
        maps = functional.relu(self.norm1(self.conv1(maps)))
        return functional.relu(self.norm2(self.conv2(maps)) + around)


class _ResNet(nn.Module):
    def __init__(self, model: ResNet18Gn, shape: Shape) -> None:
        super().__init__()
        kernel, stride = model.stem(shape)
        self.shape = shape
        self.conv = nn.Conv2d(shape[0], model.width, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = _norm(model.width)
        self.pooled = stride > 1
        self.blocks = nn.Sequential(*_blocks(model.blocks()))
        self.fc = nn.Linear(8 * model.width, model.units)
        self.embedding_norm = nn.GroupNorm(1, model.units)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        maps = functional.relu(self.norm(self.conv(features.reshape(-1, *self.shape))))
        if self.pooled:
            maps = functional.max_pool2d(maps, 3, 2, padding=1)
        means = self.blocks(maps).mean(dim=(2, 3))
        return functional.relu(self.embedding_norm(self.fc(means)))


def _blocks(sizes: Iterable[tuple[int, int, int]]) -> Iterable[nn.Module]:
    return (_Block(*size) for size in sizes)


@make_trunk.register
def _resnet(model: ResNet18Gn, shape: Shape) -> nn.Module:
    return _ResNet(model, shape)
