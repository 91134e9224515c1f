"""What stage 2 is worth: routing and system accuracy before and after it, by the deployment's own cores in one process.

`python -m bench.routing_fit heart --data ../shared/data --format json` prints one row a seed and setting; without
--format the medians and ranges. Integer contributions, the real sampler, the accountant of the ledger; what is not
there is the network: secure aggregation changes no sum.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bench.fit_data import Federation, heart, rand_hie
from bench.fit_summary import summary
from bench.report import progress, show
from feddrm.contract.plan import Training
from feddrm.contract.stages import PersonalHead, fit_sensitivity, noise_event
from feddrm.method.evaluation import choose
from feddrm.method.routing_fit import Terms, advance, contribution, head, initial_state, patient_phi
from feddrm.method.update import to_float
from privacy.accounting import epsilon
from privacy.discrete import DiscreteGaussianSource
from privacy.events import Event, PoissonSubsampledGaussian

Noise = Literal["none", "shares", "local"]
Floats = npt.NDArray[np.float32]
Head = tuple[Floats, Floats]

FRACTION_BITS = 16


@dataclass(frozen=True, slots=True)
class Fit:
    """A plan's [routing_fit], and how many silos' shares count (larger of threshold and minimum cohort, less c = 1)."""

    sums: int
    noise_multiplier: float
    step_size: float
    momentum: float
    average_from: int
    shares: int


def _heads(noise_multiplier: float, learning_rate: float) -> PersonalHead:
    return PersonalHead(steps=20, sampling_rate=1.0, noise_multiplier=noise_multiplier, learning_rate=learning_rate)


@dataclass(frozen=True, slots=True)
class Job:
    """What a data set is run with: the fit and the heads."""

    fit: Fit
    tune: PersonalHead


# By what a job's whole epsilon comes to; MNIST's by the fit's own, beside stage 1 at epsilon 3.
MNIST_HEADS = PersonalHead(steps=60, sampling_rate=0.2, noise_multiplier=8.0, learning_rate=6.0)
MNIST = {
    0.5: Job(Fit(50, 49.8, 64.0, 0.9, 26, 6), MNIST_HEADS),
    0.25: Job(Fit(50, 94.3, 64.0, 0.9, 26, 6), MNIST_HEADS),
}
HEART = {
    8.0: Job(Fit(10, 4.2, 8.0, 0.8, 6, 3), _heads(2.7, 1.0)),
    3.0: Job(Fit(10, 6.7, 8.0, 0.8, 6, 3), _heads(6.7, 1.0)),
    1.0: Job(Fit(10, 11.5, 8.0, 0.8, 6, 3), _heads(30.0, 0.5)),
}
RAND = {3.0: Job(Fit(10, 8.0, 8.0, 0.8, 6, 4), _heads(7.7, 3.0))}


@dataclass(frozen=True, slots=True)
class Case:
    """Everything about one seed but the fit's noise.

    Args:
        embeddings: float32[n, d] of each silo's training records.
        queries: float32[m, d] of the held-out records.
        right: bool[m, K], whether each silo's own model is right about each of them.
        stage1: stage 1's own routing head, if there was a stage 1.
        event1, event3: of stages 1 and 3; None where they had no privacy.
    """

    data: Federation
    label: str
    seed: int
    delta: float
    embeddings: tuple[Floats, ...]
    queries: Floats
    right: npt.NDArray[np.bool_]
    stage1: Head | None
    event1: Event | None
    event3: Event | None


def row(case: Case, fit: Fit, noise: Noise) -> dict[str, Any]:
    """Run stage 2 and look what it is worth."""
    terms = Terms(
        len(case.data.silos),
        case.queries.shape[1],
        FRACTION_BITS,
        fit.step_size,
        fit.momentum,
        fit.average_from,
        case.data.sizes,
    )
    event = noise_event(
        fit.noise_multiplier,
        sensitivity=fit_sensitivity(terms.words, FRACTION_BITS),
        shares=fit.shares if noise == "shares" else None,
        dimension=terms.words,
    )
    source = DiscreteGaussianSource(np.random.default_rng([case.seed, 2]).bytes)
    phi = [patient_phi(rows, silo.patients) for rows, silo in zip(case.embeddings, case.data.silos, strict=True)]
    state = initial_state(terms)
    for _ in range(fit.sums):
        total = np.zeros(terms.words, dtype=np.int64)
        for number, rows in enumerate(phi):
            total += contribution(terms, state, rows, number)
            if noise != "none":
                total += source.sample(terms.words, event.scale)
        state = advance(terms, state, total)
    weight, bias = (to_float(part.reshape(-1)).reshape(part.shape) for part in head(terms, state))

    of_fit = [event] * fit.sums
    private1, private2 = case.stage1 is None or case.event1 is not None, noise != "none"
    others = [each for each in (case.event1, case.event3) if each is not None]
    before = _judge(case, case.stage1) if case.stage1 else (None, None)
    after = _judge(case, (weight, bias))
    every = np.arange(len(case.queries))
    return {
        "data": case.label,
        "seed": case.seed,
        "noise": noise,
        "epsilon_stage1": _epsilon([case.event1] if case.event1 else [], case.delta) if private1 else None,
        "epsilon_stage2": _epsilon(of_fit, case.delta) if private2 else None,
        "epsilon_total": _epsilon([*others, *of_fit], case.delta) if private1 and private2 else None,
        "delta": case.delta,
        "routing_stage1": before[0],
        "routing_stage2": after[0],
        "system_stage1": before[1],
        "system_stage2": after[1],
        "own_silo": round(float(case.right[every, case.data.home].mean()), 4),
        "random_silo": round(float(case.right.mean()), 4),
    }


def _judge(case: Case, routing: Head) -> tuple[float, float]:
    """(share of queries routed to their own silo, share that the chosen silo answers rightly)."""
    chosen = choose(*routing, case.queries)
    right = case.right[np.arange(len(chosen)), chosen]
    return round(float((chosen == case.data.home).mean()), 4), round(float(right.mean()), 4)


def _epsilon(events: Sequence[Event], delta: float) -> float:
    return round(epsilon(events, delta).pld, 4)


def mnist_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Eight silos: stage 1 with and without privacy, the fit without noise, in shares and by each silo alone; silos
    answer with the heads that stage 1 left, and in the last row of a private one with heads that stage 3 has tuned."""
    from bench import fit_mnist
    from bench.fit_heads import embedded, tuned_heads

    data = fit_mnist.federation(options.data / "mnist")
    for seed in _seeds(options, 5):
        for private in {"both": (True, False), "private": (True,), "plain": (False,)}[options.stage1]:
            trained = fit_mnist.train(data, seed, private, options.cache)
            embeddings = tuple(fit_mnist.embed(trained, silo.features) for silo in data.silos)
            queries = fit_mnist.embed(trained, data.features)
            heads = [_split(own) for own in trained.heads]
            case = Case(
                data,
                "mnist" if private else "mnist, stage 1 without DP",
                seed,
                1e-5,
                embeddings,
                queries,
                _right(heads, queries, data),
                _split(trained.shared["routing"]),
                _event(fit_mnist.TRAINING) if private else None,
                None,
            )
            yield row(case, MNIST[0.5].fit, "none")
            yield row(case, MNIST[0.5].fit, "shares")
            if not private:
                continue
            yield row(case, MNIST[0.5].fit, "local")
            yield row(case, MNIST[0.25].fit, "shares")
            yield row(case, MNIST[0.25].fit, "local")
            tuned = tuned_heads(embedded(data, embeddings, queries, 10), MNIST_HEADS, seed, heads)
            label, right = f"{case.label}, heads tuned", _right(tuned, queries, data)
            yield row(replace(case, label=label, right=right, event3=_event(MNIST_HEADS)), MNIST[0.5].fit, "shares")


def heart_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Four hospitals, no stage 1: the linear model, with and without missingness indicators."""
    for seed in _seeds(options, 20):
        for indicators in (True, False):
            data = heart(options.data / "heart_uci", seed, indicators)
            for target, job in HEART.items():
                case = _linear(data, f"{data.name}, epsilon {target:g}", seed, 1e-4, job)
                for noise in ("none", "shares", "local"):
                    yield row(case, job.fit, noise)


def rand_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The demo's six sites, no stage 1: the linear model on its one-hot bins."""
    data = rand_hie()
    for seed in _seeds(options, 5):
        for job in RAND.values():
            case = _linear(data, "rand", seed, 1e-5, job)
            for noise in ("none", "shares", "local"):
                yield row(case, job.fit, noise)


def _linear(data: Federation, label: str, seed: int, delta: float, job: Job) -> Case:
    """Features are the embedding; every silo's own head is tuned by stage 3."""
    from bench.fit_heads import tuned_heads

    heads = tuned_heads(data, job.tune, seed)
    return Case(
        data,
        label,
        seed,
        delta,
        tuple(silo.features for silo in data.silos),
        data.features,
        _right(heads, data.features, data),
        None,
        None,
        _event(job.tune),
    )


def _right(heads: Sequence[Head], queries: Floats, data: Federation) -> npt.NDArray[np.bool_]:
    return np.stack([choose(*own, queries) == data.targets for own in heads], axis=1)


def _split(weights: Floats) -> Head:
    return weights[:, :-1].copy(), weights[:, -1].copy()


def _event(stage: Training | PersonalHead) -> Event:
    steps = stage.steps if isinstance(stage, PersonalHead) else stage.rounds * stage.local_steps
    return PoissonSubsampledGaussian(stage.noise_multiplier, stage.sampling_rate, steps)


def _seeds(options: argparse.Namespace, default: int) -> range:
    return range(options.first, options.first + (options.seeds or default))


ROWS: dict[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "mnist": mnist_rows,
    "heart": heart_rows,
    "rand": rand_rows,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print rows as JSON, one a line as they come, or a table of medians."""
    parser = argparse.ArgumentParser(description="Routing and system accuracy before and after the routing fit")
    parser.add_argument("which", choices=sorted(ROWS), nargs="?", default="rand")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets")
    parser.add_argument("--cache", type=Path, help="where trunks of MNIST are kept")
    parser.add_argument("--stage1", choices=("both", "private", "plain"), default="both", help="of MNIST")
    parser.add_argument("--seeds", type=int, help="how many; default 20 for heart, 5 otherwise")
    parser.add_argument("--first", type=int, default=0, help="seed with which to begin")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(argv)
    rows = []
    try:
        for each in ROWS[options.which](options):
            if options.format == "json":
                show([each], "", "json")
            rows.append(each)
            progress(f"{each['data']}, seed {each['seed']}, {each['noise']}")
    except FileNotFoundError as error:
        sys.exit(f"{error.filename} is missing; name the folder of the data sets with --data")
    if options.format == "text":
        show(summary(rows), f"Routing fit: {options.which}", "text")


if __name__ == "__main__":
    main()
