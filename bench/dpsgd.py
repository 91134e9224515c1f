"""A step of DP-SGD, against plain Opacus (hooks) on the same network and batch."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from os import urandom

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional

from bench.report import arguments, progress, show
from feddrm.contract.models import LenetGn, Mlp
from feddrm.contract.plan import Training
from feddrm.method.dpsgd import DpSgd
from feddrm.method.networks import make_trunk
from privacy.noise import GaussianSource

SILOS = 6
CLASSES = 2
TRAINING = Training(
    rounds=1,
    local_steps=1,
    sampling_rate=0.1,
    clip_norm=1.0,
    noise_multiplier=1.5,
    target_weight=0.4,
    learning_rate=1e-4,
)
# Features or image, hidden widths (none: LeNet), batch: the demo, tables, handwriting, photographs.
CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = (
    ((40,), (16,), 64),
    ((40,), (16,), 400),
    ((64,), (64, 64), 256),
    ((784,), (128,), 256),
    ((1, 28, 28), (), 128),
    ((3, 32, 32), (), 128),
)


class Network(nn.Module):
    """Trunk and two heads, as feddrm.method.model builds them of a plan."""

    def __init__(self, shape: tuple[int, ...], hidden: tuple[int, ...]) -> None:
        super().__init__()
        model = Mlp(kind="mlp", hidden=hidden) if hidden else LenetGn(kind="lenet_gn")
        self.trunk = make_trunk(model, shape)
        self.routing_head = nn.Linear(model.embedding(shape), SILOS)
        self.target_head = nn.Linear(model.embedding(shape), CLASSES)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(target logits, routing logits)."""
        phi = self.trunk(features)
        return self.target_head(phi), self.routing_head(phi)


Step = Callable[[], None]


def steps(shape: tuple[int, ...], hidden: tuple[int, ...], batch: int) -> tuple[Step, Step]:
    """One step of ours and one of Opacus', each with a network of its own and the same initial weights."""
    torch.manual_seed(0)
    rows, targets = torch.rand((batch, math.prod(shape))), torch.randint(0, CLASSES, (batch,))
    silos = torch.zeros(batch, dtype=torch.int64)
    network, other = Network(shape, hidden), Network(shape, hidden)
    other.load_state_dict(network.state_dict())
    engine = DpSgd(network, TRAINING, divisor=float(batch), noise=GaussianSource(urandom))
    module = GradSampleModule(other, batch_first=True, loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=TRAINING.learning_rate),
        noise_multiplier=TRAINING.noise_multiplier,
        max_grad_norm=TRAINING.clip_norm,
        expected_batch_size=batch,
    )
    weight = TRAINING.target_weight

    def plain() -> None:
        optimizer.zero_grad(set_to_none=True)
        target_logits, routing_logits = module(rows)
        losses = weight * functional.cross_entropy(target_logits, targets, reduction="none")
        losses = losses + (1 - weight) * functional.cross_entropy(routing_logits, silos, reduction="none")
        losses.sum().backward()
        optimizer.step()

    return lambda: engine.step(rows, targets, 0), plain


def measure(ours: Step, plain: Step, seconds: float) -> tuple[float, float, float]:
    """(CPU seconds of ours, of plain, ratio): medians of alternating steps for so long, the ratio's of each pair."""
    for step in (ours, plain, ours, plain):
        step()
    pairs: list[tuple[float, float]] = []
    end = time.process_time() + seconds
    while len(pairs) < 9 or time.process_time() < end:
        moments = [time.process_time()]
        for step in (ours, plain):
            step()
            moments.append(time.process_time())
        pairs.append((moments[1] - moments[0], moments[2] - moments[1]))
    first, second = (statistics.median(column) for column in zip(*pairs, strict=True))
    return first, second, statistics.median(one / other for one, other in pairs)


def main(argv: Sequence[str] | None = None) -> None:
    """Print CPU milliseconds a step, and the ratio: at most 1.1 is the promise."""
    options = arguments(argv, "DP-SGD, CPU milliseconds a step, against plain Opacus")
    torch.set_num_threads(1)
    rows = []
    for shape, hidden, batch in CASES[:2] if options.quick else CASES:
        network = f"hidden {hidden}" if hidden else "LeNet"
        progress(f"DP-SGD: {shape}, {network}, batches of {batch}")
        ours, plain, ratio = measure(*steps(shape, hidden, batch), seconds=0.5 if options.quick else 3.0)
        rows.append(
            {
                "features": "x".join(map(str, shape)),
                "hidden": "-".join(map(str, hidden)) or "lenet_gn",
                "batch": batch,
                "ours_ms": 1e3 * ours,
                "opacus_ms": 1e3 * plain,
                "ours_over_opacus": ratio,
            }
        )
    show(rows, "DP-SGD: CPU milliseconds a step", options.format)


if __name__ == "__main__":
    main()
