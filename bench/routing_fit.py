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
from typing import Any

from bench.fit_case import Case, Fit, Floats, Head, judged, logits_of, row, run_fit
from bench.fit_data import Federation, choosing, heart, rand_hie
from bench.fit_summary import summary
from bench.report import progress, show
from feddrm.contract.stages import PersonalHead
from feddrm.contract.training import Training
from privacy.events import Event, PoissonSubsampledGaussian


def _heads(noise_multiplier: float, learning_rate: float) -> PersonalHead:
    return PersonalHead(steps=20, sampling_rate=1.0, noise_multiplier=noise_multiplier, learning_rate=learning_rate)


@dataclass(frozen=True, slots=True)
class Job:
    """What a data set is run with: the fit and the heads."""

    fit: Fit
    tune: PersonalHead


# By what a job's whole epsilon comes to; MNIST's by the fit's own, beside stage 1 at epsilon 3.
MNIST_HEADS = PersonalHead(
    steps=50, sampling_rate=1.0, noise_multiplier=31.0, learning_rate=6.0, momentum=0.8, average_from=26
)
MNIST = {
    0.5: Job(Fit(50, 49.8, 64.0, 0.9, 26, 6, clip_norm=0.7, shared_weight=0.5), MNIST_HEADS),
    0.25: Job(Fit(50, 94.3, 64.0, 0.9, 26, 6, clip_norm=0.7, shared_weight=0.5), MNIST_HEADS),
}
HEART = {
    8.0: Job(Fit(10, 4.2, 8.0, 0.8, 6, 3), _heads(2.7, 1.0)),
    3.0: Job(Fit(10, 6.7, 8.0, 0.8, 6, 3), _heads(6.7, 1.0)),
    1.0: Job(Fit(10, 11.5, 8.0, 0.8, 6, 3), _heads(30.0, 0.5)),
}
# Chosen by --choose.
HEART_CLIP, DEMO_CLIP = 0.7, 0.5
RAND = {3.0: Job(Fit(10, 8.0, 8.0, 0.8, 6, 4), _heads(7.7, 3.0))}


_MNIST_LABELS = {
    "private": "mnist",
    "plain": "mnist, stage 1 without DP",
    "sgd": "mnist, stage 1 without DP and without momentum",
}


def mnist_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Eight silos: stage 1 with and without privacy, the fit without noise, in shares and by each silo alone; silos
    answer with the heads that stage 1 left. Two more rows of a private one have heads that stage 3 has tuned, from
    those of stage 1 on both sides of the comparison, and on stage 2's side from the head of all silos."""
    from bench import fit_mnist
    from bench.fit_heads import embedded, tuned_heads

    data, fit = fit_mnist.federation(options.data / "mnist"), MNIST[0.5].fit
    for seed in _seeds(options, 5):
        for kind in ("private", "plain", "sgd") if options.stage1 == "all" else (options.stage1,):
            private = kind == "private"
            trained = fit_mnist.train(data, seed, kind, options.cache)
            embeddings = tuple(fit_mnist.embed(trained, silo.features) for silo in data.silos)
            queries = fit_mnist.embed(trained, data.features)
            heads = [_split(own) for own in trained.heads]
            case = Case(
                data,
                _MNIST_LABELS[kind],
                seed,
                1e-5,
                embeddings,
                queries,
                logits_of(heads, queries),
                _split(trained.shared["routing"]),
                _event(fit_mnist.TRAINING) if private else None,
                None,
            )
            yield row(case, fit, "none")
            shares = run_fit(case, fit, "shares")
            yield judged(case, fit, shares)
            if not private:
                continue
            yield row(case, fit, "local")
            yield row(case, MNIST[0.25].fit, "shares")
            yield row(case, MNIST[0.25].fit, "local")
            rows = embedded(data, embeddings, queries, 10)
            before = logits_of(tuned_heads(rows, MNIST_HEADS, seed, heads), queries)
            case = replace(case, label="mnist, heads tuned", answers=before, before=before, event3=_event(MNIST_HEADS))
            yield judged(case, fit, shares)
            after = logits_of(tuned_heads(rows, MNIST_HEADS, seed, shared=shares.shared), queries)
            yield judged(replace(case, label="mnist, heads tuned from all silos' one", answers=after), fit, shares)


def heart_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Four hospitals, no stage 1: the linear model, with and without missingness indicators, and with them a target
    head of all silos beside the router."""
    from bench.fit_demo import choices

    for seed in _seeds(options, 20):
        data = heart(options.data / "heart_uci", seed, indicators=True)
        data = choosing(data, seed) if options.choose else data
        for target, job in HEART.items():
            case = _linear(data, f"{data.name}, epsilon {target:g}", seed, 1e-4, job)
            for clip, weight in choices(HEART_CLIP) if options.choose else ((HEART_CLIP, 0.7),):
                label = f"{case.label}, head of all silos, weight {weight:g}, c {clip:.2g}"
                fit = replace(job.fit, clip_norm=clip, shared_weight=weight)
                yield row(replace(case, label=label), fit, "shares")
        if options.choose:
            continue
        for indicators in (True, False):
            data = heart(options.data / "heart_uci", seed, indicators)
            for target, job in HEART.items():
                case = _linear(data, f"{data.name}, epsilon {target:g}", seed, 1e-4, job)
                for noise in ("none", "shares", "local"):
                    yield row(case, job.fit, noise)


def demo_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The demo's plan on its six sites: all stages, and the same with other starts of the target heads."""
    from bench import fit_demo

    for seed in _seeds(options, 5):
        if options.choose:
            yield from fit_demo.choosing_rows(seed, choosing(rand_hie(), seed))
        else:
            yield from fit_demo.demo_rows(seed, DEMO_CLIP)


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
        logits_of(heads, data.features),
        None,
        None,
        _event(job.tune),
    )


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
    "demo": demo_rows,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print rows as JSON, one a line as they come, or a table of medians."""
    parser = argparse.ArgumentParser(description="Routing and system accuracy before and after the routing fit")
    parser.add_argument("which", choices=sorted(ROWS), nargs="?", default="rand")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets")
    parser.add_argument("--cache", type=Path, help="where trunks of MNIST are kept")
    parser.add_argument("--stage1", choices=("all", *_MNIST_LABELS), default="all", help="of MNIST")
    parser.add_argument("--seeds", type=int, help="how many; default 20 for heart, 5 otherwise")
    parser.add_argument("--first", type=int, default=0, help="seed with which to begin")
    parser.add_argument("--choose", action="store_true", help="demo, heart: clip norms, on held-back training patients")
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
