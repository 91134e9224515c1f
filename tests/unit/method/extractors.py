"""Small public extractors and plans that name them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kinds import MakePlan
from torch import nn

from feddrm.contract.plan import Plan

NAMED = "extractor in local/data.toml"


class Encoder(nn.Module):
    """A small public network, with the statistics of a BatchNorm that others trained."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 5, stride=4)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(images))).flatten(1)


def encoder() -> nn.Module:
    torch.manual_seed(0)
    made = Encoder()
    with torch.no_grad():
        made(torch.rand(64, 1, 16, 16))
    return made.eval()


def scripted(path: Path, module: nn.Module, *, train: bool = False) -> bytes:
    script = torch.jit.script(module)
    (script.train() if train else script.eval()).save(str(path))
    return path.read_bytes()


def plan_for(make_kind: MakePlan, data: bytes, form: str = "torchscript", features: int = 36) -> Plan:
    document = make_kind("lenet_gn").model_dump(mode="json", by_alias=True)
    document["model"] = {
        "kind": "frozen",
        "sha256": hashlib.sha256(data).hexdigest(),
        "form": form,
        "features": features,
        "hidden": [8],
    }
    return Plan.model_validate(document)


def images(count: int = 12) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).uniform(-1, 0.9, (count, 256)).astype(np.float32)
