"""A step of `feddrm compare` without privacy, against the same torch loop written plainly.

A whole round of each, on the same network and batches: what compare adds are fixed-point weights, quantiser and the
draws of batches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn import functional

from bench.report import arguments, progress, show
from feddrm.compare.data import Federation, image_schema
from feddrm.compare.methods import METHODS
from feddrm.compare.settings import Settings
from feddrm.compare.training import State, Training
from feddrm.features import Dataset
from feddrm.method.layout import layout_of
from feddrm.method.model import build, load_vectors

SILOS = 3
RECORDS = 1000
# Model, shape of an image, local steps of a round.
CASES = (
    ({"kind": "lenet_gn", "channels": [32, 64], "hidden": 512, "units": 256}, (3, 32, 32), 10),
    ({"kind": "mlp", "hidden": [64]}, (1, 28, 28), 10),
)


def rounds(model: dict[str, object], shape: tuple[int, int, int], steps: int) -> tuple[Callable[[], None], ...]:
    """One round of compare's and one of the plain loop's."""
    generator = np.random.default_rng(0)
    width = int(np.prod(shape))
    silos = tuple(
        Dataset(
            generator.uniform(-1, 1, (RECORDS, width)).astype(np.float32),
            generator.integers(0, 10, RECORDS),
            [b"%d" % number for number in range(RECORDS)],
        )
        for _ in range(SILOS)
    )
    names = tuple(f"silo-{number}" for number in range(SILOS))
    home = np.zeros(1, dtype=np.int64)
    data = Federation(silos, silos[0].features[:1], home, home, names, (RECORDS,) * SILOS, image_schema(shape, 10))
    train = {"rounds": 100, "local_steps": steps, "batch": 128, "learning_rate": 0.01, "momentum": 0.9}
    settings = Settings.model_validate(
        {
            "name": "bench",
            "methods": ["feddrm"],
            "epsilons": [float("inf")],
            "data": {"source": "mnist", "split": "fixed"},
            "model": model,
            "train": train,
        }
    )
    training = Training(settings, data, METHODS["feddrm"], None, 0)
    states = training.run(training.begin())

    def ours() -> None:
        next(states)

    plan = training.plan
    start: State = training.begin()
    networks = [build(plan) for _ in names]
    for network in networks:
        load_vectors(network, layout_of(plan), start.model, start.personals[0])
    features = [torch.from_numpy(silo.features) for silo in silos]
    targets = [torch.from_numpy(np.asarray(silo.targets)) for silo in silos]

    def plain() -> None:
        for number, network in enumerate(networks):
            optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
            order = torch.randperm(RECORDS)
            for step in range(steps):
                start = step * 128 % (RECORDS - 128)
                drawn = order[start : start + 128]
                target_logits, routing_logits = network(features[number][drawn])
                loss = 0.5 * functional.cross_entropy(target_logits, targets[number][drawn])
                loss = loss + 0.5 * functional.cross_entropy(routing_logits, torch.full((128,), number))
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        with torch.no_grad():
            for parameters in zip(*(network.parameters() for network in networks), strict=True):
                mean = torch.stack(list(parameters)).mean(dim=0)
                for parameter in parameters:
                    parameter.copy_(mean)

    return ours, plain


def main(argv: Sequence[str] | None = None) -> None:
    """CPU milliseconds of a step, and their ratio; the two take turns, so that a busy machine slows both."""
    options = arguments(argv, "A step of feddrm compare against a plain torch loop")
    torch.set_num_threads(1)
    lines = []
    for model, shape, steps in CASES[1:] if options.quick else CASES:
        ours, plain = rounds(model, shape, steps)
        samples: list[list[float]] = [[], []]
        for repeat in range(8):
            for place, work in enumerate((ours, plain)):
                begun = time.process_time()
                work()
                if repeat:
                    samples[place].append((time.process_time() - begun) * 1000 / (SILOS * steps))
        ratio = statistics.median(a / b for a, b in zip(*samples, strict=True))
        lines.append(
            {
                "model": str(model["kind"]),
                "compare_ms": statistics.median(samples[0]),
                "plain_ms": statistics.median(samples[1]),
                "ratio": ratio,
            }
        )
        progress(f"{model['kind']}: {ratio:.3f}")
    show(lines, "A step of feddrm compare", options.format)


if __name__ == "__main__":
    main()
