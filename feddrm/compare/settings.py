"""What a comparison runs: a TOML file, or one of the presets, which are such files themselves."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from feddrm.compare.change import Drift
from feddrm.compare.methods import METHODS, Method
from feddrm.compare.shifts import Shift
from feddrm.contract.documents import explain, validate
from feddrm.contract.errors import UsageError
from feddrm.contract.files import load_document
from feddrm.contract.models import AnyModel
from feddrm.contract.names import Document, Name
from feddrm.contract.schema import Schema
from feddrm.contract.stages import LONGEST_RESIDUAL, MAXIMUM_SUMS
from privacy.accounting import MINIMUM_DELTA

PRESETS: Final = ("cifar10-paper", "heart", "mnist-dp", "mnist-scale", "rand")
MAXIMUM_SILOS: Final = 50
MAXIMUM_SEEDS: Final = 1000

Positive = Annotated[float, Field(gt=0, le=1e6)]
Share = Annotated[float, Field(gt=0, lt=1)]
# As numpy's generators take them.
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]


class Files(Document):
    """A user's own records, one file a silo: what plan and silos would use.

    Attributes:
        schema: of the plan.
        silos: each silo's file, beside the settings' own file if not absolute.
        held_out: the share of each silo's patients that methods are judged by.
    """

    schema_: Annotated[Schema, Field(alias="schema")]
    silos: Annotated[dict[Name, Path], Field(min_length=3, max_length=MAXIMUM_SILOS)]
    held_out: Share = 0.3


class Data(Document):
    """Which records, and how they are divided among silos.

    Attributes:
        source: a public data set, or "files".
        split: "fixed" is the one that lies beside the data set; "natural": the data have silos.
        silos: how many, where the split does not say; several for several sizes of federation.
        alpha: of split "dirichlet".
        shards: of each silo, in split "shards".
        split_seed: of "dirichlet" and "shards"; "natural" splits hold other records out for every seed.
        shift: of features.
        training_share: the rest of every silo's records is held out.
        most_records: takes so many of the images, at random.
        validation: judges by this share of every silo's *training* patients, who are not trained on then, and leaves
            the held-out records unseen: for choosing settings.
        files: of source "files".
    """

    source: Literal["rand", "heart", "mnist", "cifar10", "files"]
    split: Literal["natural", "fixed", "dirichlet", "shards"] = "natural"
    silos: Annotated[tuple[Annotated[int, Field(ge=3, le=MAXIMUM_SILOS)], ...], Field(max_length=8)] = ()
    alpha: Positive = 0.3
    shards: Annotated[int, Field(ge=1, le=100)] = 2
    split_seed: Seed = 2025
    shift: Shift = "none"
    training_share: Share = 0.7
    most_records: Annotated[int | None, Field(ge=100)] = None
    validation: Share | None = None
    files: Files | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.source == "files") != (self.files is not None):
            raise ValueError('data.files belongs to source = "files", and only there')
        images = self.source in ("mnist", "cifar10")
        if images == (self.split == "natural"):
            raise ValueError(
                "data.split: images have no silos of their own" if images else "data.split: tables keep their own silos"
            )
        if (self.split in ("dirichlet", "shards")) != bool(self.silos):
            raise ValueError('data.silos: say how many for split = "dirichlet" or "shards", and only there')
        wanted = {"mnist": "light", "cifar10": "colour"}.get(self.source)
        if self.shift not in ("none", wanted):
            raise ValueError(f'data.shift: {self.source} has "none"' + (f' or "{wanted}"' if wanted else ""))
        return self


class Train(Document):
    """Stage 1 of all methods alike: what they may spend.

    Attributes:
        rounds, local_steps: of every silo that takes part.
        participation: share of the silos drawn for a round.
        sampling_rate: of patients, for a step; without privacy the batch is as large, rounded.
        batch: instead of a rate: the same number of records at every silo, without privacy only.
        learning_rate, momentum, weight_decay, decay: of local steps without privacy.
        private_learning_rate, private_momentum: of local steps with it.
        clip_norm: of a patient's gradient.
        target_weight: the paper's lambda, of methods that route.
        weights: in the average of silos: "uniform", or by public "size".
        head_steps: of methods that alternate (FedRep): the first so many local steps move the head alone.
        local_rounds: of methods that fine-tune (FedAvgFT): the last so many rounds are not averaged.
        proximal_mu: of FedProx.
    """

    rounds: Annotated[int, Field(ge=1, le=10_000)]
    local_steps: Annotated[int, Field(ge=1, le=10_000)]
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    sampling_rate: Annotated[float, Field(gt=0, le=1)] = 0.05
    batch: Annotated[int | None, Field(ge=1, le=65536)] = None
    learning_rate: Positive
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    decay: Literal["none", "cosine"] = "none"
    private_learning_rate: Positive | None = None
    private_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    clip_norm: Positive = 1.0
    target_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    weights: Literal["uniform", "size"] = "uniform"
    head_steps: Annotated[int, Field(ge=0)] = 0
    local_rounds: Annotated[int, Field(ge=0)] = 0
    proximal_mu: Annotated[float, Field(ge=0)] = 0.0


class Fit(Document):
    """Stage 2 of methods that have it; its share of epsilon is spent on it alone.

    Attributes:
        epsilon_share: of the whole epsilon.
        tie: a second silo is asked where its density ratio is more than this part of the first one's; 1 for never.
        shared_weight: the part that the target head of all silos has in the answer to a query from outside.
        home_weight: and in what a silo says of its own patient.
        clip_norm: of a patient's residual; what is longer is shortened, and the noise is relative to it.
    """

    sums: Annotated[int, Field(ge=1, le=MAXIMUM_SUMS)] = 50
    step_size: Annotated[float, Field(ge=2**-16, le=127)] = 32.0
    momentum: Annotated[float, Field(ge=0, le=0.999)] = 0.95
    average_from: Annotated[int, Field(ge=1)] = 26
    epsilon_share: Share = 0.15
    tie: Annotated[float, Field(gt=0, le=1)] = 1.0
    shared_weight: Annotated[float, Field(ge=0, le=1)] = 0.7
    home_weight: Annotated[float, Field(ge=0, le=1)] = 0.3
    clip_norm: Annotated[float, Field(ge=2**-6, le=LONGEST_RESIDUAL)] = LONGEST_RESIDUAL


class Tune(Document):
    """Stage 3 of methods that have it: every silo's head, from that of all silos where stage 2 makes one.

    Attributes:
        steps, sampling_rate, momentum, average_from: as in a plan's `personal_head`.
        learning_rate: without privacy, where nothing is clipped either.
        private_learning_rate: with it.
        clip_norm: of a patient's gradient.
        epsilon_share: of the whole epsilon, spent on it alone.
    """

    steps: Annotated[int, Field(ge=1, le=10_000)] = 50
    sampling_rate: Annotated[float, Field(ge=1e-6, le=1)] = 1.0
    learning_rate: Positive = 1.0
    private_learning_rate: Positive = 0.3
    momentum: Annotated[float, Field(ge=0, le=0.999)] = 0.8
    average_from: Annotated[int, Field(ge=1)] = 26
    clip_norm: Positive = 1.0
    epsilon_share: Share = 0.2


class Settings(Document):
    """A whole comparison: every method at every epsilon, number of silos and seed is one cell.

    Attributes:
        extractor: file of a model of kind "frozen", beside the settings' own file if not absolute.
        epsilons: of all stages together; `inf` is training without privacy.
    """

    # Infinity comes back from JSON as it went there.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    name: Name
    data: Data
    model: AnyModel
    extractor: Path | None = None
    train: Train
    fit: Fit = Fit()
    tune: Tune = Tune()
    drift: Drift = Drift()
    methods: Annotated[tuple[str, ...], Field(min_length=1)]
    epsilons: Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=True)], ...], Field(min_length=1)]
    delta: Annotated[float, Field(ge=MINIMUM_DELTA, lt=1e-2)] = 1e-5
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=MAXIMUM_SEEDS)] = (0, 1, 2)

    @model_validator(mode="after")
    def _known(self) -> Self:
        unknown = [name for name in self.methods if name not in METHODS]
        if unknown:
            raise ValueError(f"methods: {', '.join(unknown)} unknown; there are {', '.join(METHODS)}")
        for field in ("methods", "epsilons", "seeds"):
            if len(set(getattr(self, field))) != len(getattr(self, field)):
                raise ValueError(f"{field}: one appears twice")
        if (self.model.kind == "frozen") != (self.extractor is not None):
            raise ValueError('extractor: the file of model.kind = "frozen", and only there')
        private = any(value != float("inf") for value in self.epsilons)
        if private and self.train.batch is not None:
            raise ValueError("train.batch: privacy needs a sampling_rate instead")
        if self.train.batch is None and self.train.sampling_rate < 1e-6:
            raise ValueError("train.sampling_rate: too small")
        if self.fit.epsilon_share + self.tune.epsilon_share >= 1:
            raise ValueError("tune.epsilon_share: with fit.epsilon_share leaves nothing for training")
        if self.train.local_rounds >= self.train.rounds:
            raise ValueError("train.local_rounds: leaves no round that is averaged")
        return self

    @property
    def chosen(self) -> tuple[Method, ...]:
        """The methods."""
        return tuple(METHODS[name] for name in self.methods)


def load(name: str) -> Settings:
    """A preset's settings, or those of a TOML file.

    Raises:
        UsageError: neither a preset nor a file.
        InputError: the file is not valid; names the key.
    """
    if name in PRESETS:
        text = (resources.files("feddrm.compare") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
        return validate(tomllib.loads(text), Settings)
    path = Path(name)
    if not path.is_file():
        raise UsageError(
            f"{name} is neither a preset nor a file.", remedy=f"Presets: {', '.join(PRESETS)}; or name a TOML file."
        )
    return located(load_document(path, Settings), path.parent)


def located(settings: Settings, folder: Path) -> Settings:
    """Settings whose files' paths are not relative to anywhere else than `folder`."""
    if settings.extractor is not None:
        settings = settings.model_copy(update={"extractor": folder / settings.extractor})
    files = settings.data.files
    if files is None:
        return settings
    silos = {name: folder / path for name, path in files.silos.items()}
    changed = files.model_copy(update={"silos": silos})
    return settings.model_copy(update={"data": settings.data.model_copy(update={"files": changed})})


def document(settings: Settings) -> dict[str, Any]:
    """Settings as JSON, infinity as null."""
    raw: dict[str, Any] = settings.model_dump(mode="json", by_alias=True)
    raw["epsilons"] = [None if value == float("inf") else value for value in settings.epsilons]
    return raw


def narrowed(
    settings: Settings, methods: str | None, epsilons: str | None, seeds: int | None, validation: float | None = None
) -> Settings:
    """Settings with fewer methods, epsilons or seeds, or judged by training patients, as a command line says.

    Raises:
        UsageError: an unknown method or no number.
    """
    changes: dict[str, Any] = {}
    if methods is not None:
        changes["methods"] = [name.strip() for name in methods.split(",")]
    if epsilons is not None:
        try:
            changes["epsilons"] = [float(value) for value in epsilons.split(",")]
        except ValueError as error:
            raise UsageError("--epsilons takes numbers separated by commas.") from error
    if seeds is not None:
        changes["seeds"] = list(range(seeds))
    raw = settings.model_dump(mode="python", by_alias=True)
    if validation is not None:
        changes["data"] = {**raw["data"], "validation": validation}
    try:
        return Settings.model_validate({**raw, **changes})
    except ValidationError as error:
        raise UsageError(explain(error, changes, Settings)[0] + ".") from error
