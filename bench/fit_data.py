"""What `bench.routing_fit` runs on: silos' training records, and held-out records whose silo is known."""

from __future__ import annotations

import runpy
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from feddrm.contract.files import load_document
from feddrm.contract.plan import Plan
from feddrm.contract.schema import Schema
from feddrm.demo import rand
from feddrm.features import Dataset, Table, encode, read_table

EXAMPLE: Final = Path(__file__).parents[1] / "examples" / "heart"


@dataclass(frozen=True, slots=True)
class Federation:
    """One data set.

    Args:
        name: of the data set.
        silos: K of them, with targets; features float32[n, ...].
        features: float32[m, ...] of held-out records of all silos.
        targets: int64[m].
        home: int64[m], the silo that each came from.
        sizes: K public approximate numbers of patients.
        schema: of the records, if they are tables.
    """

    name: str
    silos: tuple[Dataset, ...] = field(repr=False)
    features: npt.NDArray[np.float32] = field(repr=False)
    targets: npt.NDArray[np.int64] = field(repr=False)
    home: npt.NDArray[np.int64] = field(repr=False)
    sizes: tuple[int, ...]
    schema: Schema | None = field(default=None, repr=False)


def rand_hie() -> Federation:
    """The six sites of the demo: one-hot public bins, persons as patients, 30 % of them held out."""
    with tempfile.TemporaryDirectory() as folder:
        files = rand.write_files(Path(folder))
        schema = Schema.model_validate(rand.schema_document())
        silos = tuple(encode(read_table(files.train[site]), schema) for site in rand.SITES)
        held = encode(read_table(files.held_out), schema, targets=False)
    return Federation(
        "rand",
        silos,
        held.features,
        np.array([rand.LABELS.index(truth.label) for truth in files.truth]),
        np.array([rand.SITES.index(truth.site) for truth in files.truth]),
        tuple(files.public_size[site] for site in rand.SITES),
        schema,
    )


def heart_plan() -> Plan:
    """The plan of the walk-through: its schema has bounds from medicine, its sizes are public facts."""
    return load_document(EXAMPLE / "plan.toml", Plan)


def heart_schema(indicators: bool) -> Schema:
    """Thirteen columns, with or without features that say that a value is missing."""
    schema = heart_plan().schema_
    columns = tuple(column.model_copy(update={"missing_indicator": indicators}) for column in schema.columns)
    return schema.model_copy(update={"columns": columns})


def heart(folder: Path, seed: int, indicators: bool) -> Federation:
    """The four hospitals of the UCI Heart Disease data, 30 % of each held out at random.

    Args:
        folder: holds the four processed.*.data files.
        seed: of the split.
        indicators: whether the features say that a value is missing.

    Raises:
        FileNotFoundError: a file is missing.
    """
    generator = np.random.default_rng(seed)
    # A script for people, in a folder that is no package: read the files as it does.
    prepare = runpy.run_path(str(EXAMPLE / "prepare.py"))
    schema, fit = heart_schema(indicators), heart_plan().routing_fit
    assert fit is not None
    silos, held = [], []
    for hospital in prepare["HOSPITALS"]:
        rows = prepare["records"](folder, hospital)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        data = encode(Table(hospital, columns, list(range(1, len(rows) + 1))), schema)
        order = generator.permutation(len(data))
        cut = round(0.3 * len(data))
        held.append(data.part(np.sort(order[:cut])))
        silos.append(data.part(np.sort(order[cut:])))
    return Federation(
        "heart" if indicators else "heart without indicators",
        tuple(silos),
        np.concatenate([data.features for data in held]),
        np.concatenate([data.known_targets() for data in held]),
        np.concatenate([np.full(len(data), k) for k, data in enumerate(held)]),
        tuple(fit.public_sizes[hospital] for hospital in prepare["HOSPITALS"]),
        schema,
    )


def choosing(data: Federation, seed: int) -> Federation:
    """The same silos with a fifth of their patients held back, on whose records settings may be chosen: what is
    reported of the data has no part in it."""
    generator = np.random.default_rng([seed, 5])
    silos, held = [], []
    for silo in data.silos:
        patients = sorted(set(silo.patients))
        back = {patients[place] for place in generator.permutation(len(patients))[: len(patients) // 5]}
        there = np.array([patient in back for patient in silo.patients])
        held.append(silo.part(there))
        silos.append(silo.part(~there))
    return replace(
        data,
        silos=tuple(silos),
        features=np.concatenate([each.features for each in held]),
        targets=np.concatenate([each.known_targets() for each in held]),
        home=np.concatenate([np.full(len(each), k) for k, each in enumerate(held)]),
    )
