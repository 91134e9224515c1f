"""Which cells a comparison has, which of them share a training, and how one is run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from feddrm.compare import data, tables
from feddrm.compare.budget import Noise, noise_for
from feddrm.compare.data import FIXED_SILOS, Federation
from feddrm.compare.judging import judge
from feddrm.compare.methods import METHODS, Method
from feddrm.compare.plans import plan_of, terms_of
from feddrm.compare.settings import Settings
from feddrm.compare.store import Store, name_of
from feddrm.compare.training import Training
from feddrm.features import Dataset
from feddrm.method.extractor import Extractor

# Between two times that the state of a training is written.
_KEEP_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One method at one epsilon, number of silos and seed; `silos` is 0 where the data say how many."""

    method: str
    epsilon: float
    silos: int
    seed: int

    @property
    def row(self) -> Method:
        """The method at its epsilon."""
        return METHODS[self.method].at(self.epsilon)

    @property
    def name(self) -> str:
        """Of its file."""
        # Short where that tells one epsilon from all others.
        short = f"{self.epsilon:g}"
        epsilon = short if float(short) == self.epsilon else repr(self.epsilon)
        return f"{self.method}-e{epsilon}-k{self.silos}-s{self.seed}"


@dataclass(frozen=True, slots=True)
class Job:
    """Cells that are judgements of one training."""

    cells: tuple[Cell, ...]


def jobs(settings: Settings) -> Iterator[Job]:
    """All cells, those of one training together, seeds outermost, so that a first look comes early."""
    for seed in settings.seeds:
        for silos in settings.data.silos or (0,):
            for epsilon in settings.epsilons:
                shared: dict[object, list[Cell]] = {}
                for method in settings.chosen:
                    cell = Cell(method.name, epsilon, silos, seed)
                    shared.setdefault(_training_key(cell.row, epsilon), []).append(cell)
                yield from (Job(tuple(cells)) for cells in shared.values())


def run(job: Job, settings: Settings, folder: Path, store: Store, advance: Callable[[int], None]) -> None:
    """Run what is missing of a job and write its rows.

    Args:
        job: of `jobs`.
        settings: of the comparison.
        folder: of the public data sets.
        store: of the comparison.
        advance: called with the number of rounds done.

    Raises:
        InputError: the data cannot be read, or no noise keeps within epsilon.
    """
    missing = [cell for cell in job.cells if store.row(cell.name) is None]
    if not missing:
        advance(settings.train.rounds)
        return
    first = job.cells[0]
    federation = federation_of(settings, folder, first.silos, first.seed)
    noise = noise_of(settings, federation, first, store)
    training = Training(settings, federation, first.row, noise, first.seed)
    name = name_of([first.method, first.epsilon, first.silos, first.seed])
    state = store.state(name) or training.begin()
    advance(state.number)
    kept = time.monotonic()
    for after in training.run(state):
        state = after
        advance(1)
        if time.monotonic() - kept > _KEEP_SECONDS:
            store.keep_state(name, state)
            kept = time.monotonic()
    networks = training.networks(state)
    for cell in missing:
        method = cell.row
        # The job's training is of the first method's plan: stage 2 is each method's own.
        plan = plan_of(settings, federation, method, noise)
        judged = judge(settings, federation, method, plan, networks, noise, cell.seed)
        row: dict[str, Any] = {
            "method": cell.method,
            "epsilon": None if math.isinf(cell.epsilon) else cell.epsilon,
            "silos": len(federation.silos),
            "seed": cell.seed,
            **judged.quality.as_dict(),
            "bytes": state.bytes + judged.bytes,
            "steps": state.steps + judged.steps,
            "epsilon_spent": None if noise is None else round(noise.epsilon, 4),
        }
        store.keep_row(cell.name, row)
    store.drop_state(name)


def _training_key(method: Method, epsilon: float) -> object:
    """Methods of one key have the same stage 1. With privacy the later stages have their parts of epsilon."""
    same = (method.personal, method.beside, method.head_first, method.tunes, method.proximal)
    return same if math.isinf(epsilon) else (*same, method.fits, method.shares, method.heads)


def noise_of(settings: Settings, federation: Federation, cell: Cell, store: Store) -> Noise | None:
    """What the accountant finds for a cell, or found before; None without privacy.

    Raises:
        InputError: no noise keeps within epsilon.
    """
    if math.isinf(cell.epsilon):
        return None
    terms = terms_of(settings, federation, cell.row, cell.epsilon)
    noise = store.noise(terms)
    if noise is None:
        noise = noise_for(terms)
        store.keep_noise(terms, noise)
    return noise


def federation_of(settings: Settings, folder: Path, silos: int, seed: int) -> Federation:
    """The data of a cell; `silos` is 0 where they say how many.

    Raises:
        InputError: they cannot be read.
    """
    return _federation(settings.model_dump_json(by_alias=True), folder, silos, seed)


@lru_cache(maxsize=2)
def _federation(settings: str, folder: Path, silos: int, seed: int) -> Federation:
    """One process runs many cells on the same data, one after another."""
    wanted = Settings.model_validate_json(settings)
    natural = wanted.data.split == "natural"
    federation = tables.natural(wanted.data, folder, seed) if natural else _images(settings, folder, silos)
    if wanted.data.validation is not None:
        federation = tables.for_choosing(federation, wanted.data.validation, wanted.data.split_seed)
    if wanted.extractor is not None:
        federation = _extracted(wanted, wanted.extractor, federation)
    return federation


def _extracted(settings: Settings, path: Path, federation: Federation) -> Federation:
    """What the network is given where the model is a public extractor's: its features, as silos and queriers do."""
    extractor = Extractor(plan_of(settings, federation, settings.chosen[0], None), path, "extractor in the settings")
    silos = tuple(
        Dataset(extractor.apply(data.features), data.known_targets(), data.patients) for data in federation.silos
    )
    return replace(federation, silos=silos, features=extractor.apply(federation.features))


@lru_cache(maxsize=1)
def _images(settings: str, folder: Path, silos: int) -> Federation:
    return data.images(Settings.model_validate_json(settings).data, silos or FIXED_SILOS, folder)
