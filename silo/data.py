"""The hospital's records, through local/data.toml and the plan's schema."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from feddrm.contract.errors import InputError
from feddrm.contract.models import Frozen
from feddrm.contract.plan import Plan
from feddrm.contract.schema import Schema
from feddrm.features import Dataset, encode, read_table, training_data
from silo.home import Home

_EXTRACTOR: Final = "extractor in local/data.toml"


@dataclass(frozen=True, slots=True)
class Records:
    """Encoded records.

    Attributes:
        dataset: features float32[n, d], targets int64[n], patients as bytes.
        digest: SHA-256 over all of them, 32 bytes. It can be inverted by search: only a keyed hash of it may be kept.
        patient, public_size: as local/data.toml has them.
    """

    dataset: Dataset = field(repr=False)
    digest: bytes = field(repr=False)
    patient: str
    public_size: int


def records_path(home: Home) -> Path:
    """The table that local/data.toml names.

    Raises:
        InputError: data.toml is missing or malformed.
    """
    return home.local / home.data_settings().records


def extractor_path(home: Home) -> Path | None:
    """The public feature extractor that local/data.toml names, if it does.

    Raises:
        InputError: data.toml is missing or malformed.
    """
    name = home.data_settings().extractor
    return None if name is None else home.local / name


def with_features(home: Home, plan: Plan, dataset: Dataset) -> Dataset:
    """What the plan's network is given of encoded records: themselves, unless it has a feature extractor.

    Raises:
        InputError: the extractor's file is missing, another one than the plan's, or unusable.
        MissingExtraError: torch is not installed.
    """
    if not isinstance(plan.model, Frozen):
        return dataset
    from feddrm.method.extractor import extracted

    return replace(dataset, features=extracted(plan, extractor_path(home), dataset.features, _EXTRACTOR))


def load_records(home: Home, schema: Schema) -> Records:
    """Read and encode the hospital's records for training.

    A cell that does not fit never refuses the table: whether one does is a fact about a patient, and an answer to a
    plan that depended on it would tell (feddrm.features.training_data says what becomes of it).

    Raises:
        InputError: data.toml is malformed, there is no such table, or it lacks a column of the schema.
    """
    settings = home.data_settings()
    dataset = training_data(records_path(home), schema)
    return Records(dataset, dataset_digest(dataset), settings.patient, settings.public_size)


def check_records(home: Home, schema: Schema) -> Dataset:
    """Read and encode the hospital's records, and complain about every cell that does not fit: for people.

    Raises:
        InputError: file, column or value is not as data.toml and the schema say.
    """
    return encode(read_table(records_path(home)), schema)


def dataset_digest(dataset: Dataset) -> bytes:
    """SHA-256 over shapes, features, targets and length-prefixed patients."""
    if dataset.targets is None:
        raise InputError("Records need a target.")
    digest = hashlib.sha256(repr(dataset.features.shape).encode())
    digest.update(dataset.features.astype("<f4").tobytes())
    digest.update(dataset.targets.astype("<i8").tobytes())
    for patient in dataset.patients:
        digest.update(len(patient).to_bytes(8) + patient)
    return digest.digest()
