"""One seed of `bench.routing_fit`: stage 2 run by the deployment's own cores, and what queries get before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from bench.fit_data import Federation
from feddrm.contract.stages import LONGEST_RESIDUAL, DiscreteEvent, fit_sensitivity, noise_event
from feddrm.method.evaluation import choose
from feddrm.method.routing import Router
from feddrm.method.routing_fit import (
    Terms,
    advance,
    contribution,
    head,
    initial_state,
    patient_labels,
    patient_phi,
    target_head,
)
from feddrm.method.shared_head import SharedHead, linear_logits
from feddrm.method.update import to_float
from privacy.accounting import epsilon
from privacy.discrete import DiscreteGaussianSource
from privacy.events import Event

Noise = Literal["none", "shares", "local"]
Floats = npt.NDArray[np.float32]
Logits = npt.NDArray[np.float64]
Head = tuple[Floats, Floats]

FRACTION_BITS: Final = 16
# Of the second opinion: a pair whose density ratios differ by less than this factor is asked both.
TIE: Final = 0.7


@dataclass(frozen=True, slots=True)
class Fit:
    """A plan's [routing_fit], and how many silos' shares count (larger of threshold and minimum cohort, less c = 1).

    Args:
        shared_weight: of the target head of all silos in an answer (`queries.shared_weight`); None where the sums fit
            no such head.
        home_weight: of it in what a silo says of its own patients (`queries.home_weight`).
    """

    sums: int
    noise_multiplier: float
    step_size: float
    momentum: float
    average_from: int
    shares: int
    clip_norm: float = LONGEST_RESIDUAL
    shared_weight: float | None = None
    home_weight: float = 0.3


@dataclass(frozen=True, slots=True)
class Case:
    """Everything about one seed but the fit's noise.

    Args:
        embeddings: float32[n, d] of each silo's training records.
        queries: float32[m, d] of the held-out records.
        answers: float64[m, K, C], logits of each silo's own model for each of them.
        stage1: stage 1's own routing head, if there was a stage 1.
        event1, event3: of stages 1 and 3; None where they had no privacy.
        before: as `answers`, of the models that there would be without stage 2; None for the same.
        seen: float32[m, d], what the router is shown of `queries`; None for all of them.
        others: what else the job charges a patient.
    """

    data: Federation
    label: str
    seed: int
    delta: float
    embeddings: tuple[Floats, ...] = field(repr=False)
    queries: Floats = field(repr=False)
    answers: Logits = field(repr=False)
    stage1: Head | None = field(repr=False)
    event1: Event | None
    event3: Event | None
    before: Logits | None = field(default=None, repr=False)
    seen: Floats | None = field(default=None, repr=False)
    others: tuple[Event, ...] = ()

    @property
    def shown(self) -> Floats:
        """What the router goes by."""
        return self.queries if self.seen is None else self.seen


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a fit left: its routing head, the target head of all silos if it has one, its event and noise."""

    routing: Head = field(repr=False)
    shared: Head | None = field(repr=False)
    event: DiscreteEvent
    noise: Noise


def run_fit(case: Case, fit: Fit, noise: Noise) -> Fitted:
    """Stage 2 of a case."""
    classes = 0 if fit.shared_weight is None else case.answers.shape[2]
    terms = Terms(
        len(case.data.silos),
        case.queries.shape[1],
        FRACTION_BITS,
        fit.step_size,
        fit.momentum,
        fit.average_from,
        case.data.sizes,
        classes,
        fit.clip_norm,
    )
    event = noise_event(
        fit.noise_multiplier,
        sensitivity=fit_sensitivity(terms.words, FRACTION_BITS, fit.clip_norm),
        shares=fit.shares if noise == "shares" else None,
        dimension=terms.words,
    )
    source = DiscreteGaussianSource(np.random.default_rng([case.seed, 2]).bytes)
    phi = [patient_phi(rows, silo.patients) for rows, silo in zip(case.embeddings, case.data.silos, strict=True)]
    labels = [
        patient_labels(silo.known_targets(), silo.patients, classes) if classes else None for silo in case.data.silos
    ]
    state = initial_state(terms)
    for _ in range(fit.sums):
        total = np.zeros(terms.words, dtype=np.int64)
        for number, (rows, named) in enumerate(zip(phi, labels, strict=True)):
            total += contribution(terms, state, rows, number, named)
            if noise != "none":
                total += source.sample(terms.words, event.scale)
        state = advance(terms, state, total)
    shared = _floats(target_head(terms, state)) if classes else None
    return Fitted(_floats(head(terms, state)), shared, event, noise)


def row(case: Case, fit: Fit, noise: Noise) -> dict[str, Any]:
    """Run stage 2 and look what it is worth."""
    return judged(case, fit, run_fit(case, fit, noise))


def judged(case: Case, fit: Fit, fitted: Fitted) -> dict[str, Any]:
    """What a fit is worth. `system_stage2` is the router's doing alone: the routed silo answers with its own model, as
    in `system_stage1`; what the head of all silos adds is in the last columns."""
    of_fit = [fitted.event] * fit.sums
    private1, private2 = case.stage1 is None or case.event1 is not None, fitted.noise != "none"
    others = [each for each in (case.event1, case.event3, *case.others) if each is not None]
    home, every = case.data.home, np.arange(len(case.queries))
    right = case.answers.argmax(axis=2) == case.data.targets[:, None]
    before: tuple[float | None, float | None] = (None, None)
    if case.stage1:
        models = case.answers if case.before is None else case.before
        first = choose(*case.stage1, case.shown)
        before = _share(first == home), _share(models[every, first].argmax(axis=1) == case.data.targets)
    chosen = choose(*fitted.routing, case.shown)
    return {
        "data": case.label,
        "seed": case.seed,
        "noise": fitted.noise,
        "epsilon_stage1": _epsilon([case.event1] if case.event1 else [], case.delta) if private1 else None,
        "epsilon_stage2": _epsilon(of_fit, case.delta) if private2 else None,
        "epsilon_total": _epsilon([*others, *of_fit], case.delta) if private1 and private2 else None,
        "delta": case.delta,
        "routing_stage1": before[0],
        "routing_stage2": _share(chosen == home),
        "system_stage1": before[1],
        "system_stage2": _share(right[every, chosen]),
        "own_silo": _share(right[every, home]),
        "random_silo": _share(right),
        **_with_shared(case, fit, fitted),
    }


def _with_shared(case: Case, fit: Fit, fitted: Fitted) -> dict[str, float | None]:
    """The head of all silos alone, in the answers of the routed silo, and with a second silo's where two are tied."""
    if fitted.shared is None or fit.shared_weight is None:
        return dict.fromkeys(("shared_head", "system_mixed", "system_second", "own_mixed"))
    weight, bias = (part.astype(np.float64) for part in fitted.shared)
    shared = SharedHead(weight, bias, fit.shared_weight, fit.shared_weight)
    answers, home = (
        np.stack([shared.mixed(case.answers[:, k], case.queries, part) for k in range(case.answers.shape[1])], axis=1)
        for part in (fit.shared_weight, fit.home_weight)
    )
    router = Router(*fitted.routing, tuple(str(k) for k in range(answers.shape[1])))
    routes = router.nearest(case.shown, router.silos, TIE, fitted=True)
    every, first = np.arange(len(routes)), routes[:, 0]
    second = np.where(routes[:, 1] < 0, first, routes[:, 1])
    parts: dict[str, npt.NDArray[np.floating[Any]]] = {
        "shared_head": shared.logits(case.queries),
        "system_mixed": answers[every, first],
        "system_second": (answers[every, first] + answers[every, second]) / 2,
        "own_mixed": home[every, case.data.home],
    }
    return {name: _share(part.argmax(axis=1) == case.data.targets) for name, part in parts.items()}


def logits_of(heads: Sequence[Head], queries: Floats) -> Logits:
    """float64[m, K, C] of linear heads."""
    return np.stack([linear_logits(*own, queries) for own in heads], axis=1)


def _floats(tensors: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]) -> Head:
    weight, bias = tensors
    return to_float(weight.reshape(-1)).reshape(weight.shape), to_float(bias)


def _share(flags: npt.NDArray[np.bool_]) -> float:
    return round(float(flags.mean()), 4)


def _epsilon(events: Sequence[Event], delta: float) -> float:
    return round(epsilon(events, delta).pld, 4)
