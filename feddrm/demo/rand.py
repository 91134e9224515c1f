"""The RAND Health Insurance Experiment as a federation: its six sites are the silos, a person is the unit of privacy.

What is left out of the features, and why: `zper` is the person's id and its leading digit *is* the site; `site` is
what routing must find out; spending and visits of the same year (outpdol, suppdol, mentdol, inpdol, meddol, totadm,
inpmis, mentvis, mdvis, notmdvis, lnmeddol, binexp) leak the target; `plan` numbers the study's arms, which differ by
site, while coins, idp, mdeoff and pioff say what a person's insurance covers; functions of kept columns (lfam, lpi,
logc, fmde, linc, lnum, child, fchild) add nothing to bins; `time` is 1 but for newborns and deaths; `xghindx` is
`ghindx` with its gaps filled in, and the gaps are facts. All bin edges are round numbers, none was computed from the
table.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from feddrm.demo.measure import Truth
from feddrm.features import Table, read_table

SITES: Final = ("site-1", "site-2", "site-3", "site-4", "site-5", "site-6")
LABELS: Final = ("no drugs bought", "drugs bought")
HELD_OUT: Final = 0.3
EPSILON_CAP: Final = 3.0
# What a hospital's own messages would cost its patients if secure aggregation failed: the routing fit's noise comes in
# shares.
EPSILON_CAP_ALONE: Final = 4.5
DELTA: Final = 1e-5
ROUNDS: Final = 20
SUMS: Final = 30
ALL_ROUNDS: Final = ROUNDS + SUMS + 1

# Approximate numbers of persons in training: public, since the study published its enrolment.
PUBLIC_SIZE: Final = dict(zip(SITES, (800, 850, 500, 650, 550, 750), strict=True))

_PATIENT: Final = "zper"
_TARGET: Final = "drugdol"


def _yes_no(name: str) -> dict[str, Any]:
    return {"kind": "categorical", "name": name, "categories": ["0", "1"], "missing_indicator": False}


def _binned(name: str, *edges: float, missing_indicator: bool = False) -> dict[str, Any]:
    return {
        "kind": "binned",
        "name": name,
        "edges": [float(edge) for edge in edges],
        "missing_indicator": missing_indicator,
    }


def schema_document() -> dict[str, Any]:
    """The data schema of the demo's plan."""
    return {
        "patient": _PATIENT,
        "target": {
            "kind": "threshold",
            "column": _TARGET,
            "operator": ">",
            "value": 0.0,
            "labels": list(LABELS),
        },
        "columns": [
            {
                "kind": "categorical",
                "name": "coins",
                "categories": ["0", "25", "50", "95", "100"],
                "missing_indicator": False,
            },
            _yes_no("idp"),
            _binned("mdeoff", 1, 150, 300, 450, 600, 750, 900, 1000),
            _binned("pioff", 1, 150, 300, 450, 600, 750, 900, 1000),
            _yes_no("tookphys"),
            {
                "kind": "categorical",
                "name": "year",
                "categories": ["1", "2", "3", "4", "5"],
                "missing_indicator": False,
            },
            _yes_no("female"),
            _binned("xage", 2, 5, *range(10, 65, 5)),
            _binned("black", 0.01, 0.99),
            _binned("income", 1000, 2500, *range(4000, 13000, 1000), 15000, 20000),
            _binned("educdec", *range(7, 18)),
            _binned("num", *range(2, 9)),
            _binned("mhi", *range(50, 100, 5)),
            _binned("disea", *range(1, 16), 20, 25, 30),
            _binned("physlm", 0.01, 0.1, 0.5),
            _binned("ghindx", *range(30, 100, 10), missing_indicator=True),
            _yes_no("hlthg"),
            _yes_no("hlthf"),
            _yes_no("hlthp"),
        ],
    }


def plan_document(federation: str, roster_version: int, silos: tuple[str, ...] = SITES) -> dict[str, Any]:
    """The demo's plan, ready for `Plan.model_validate` or for TOML.

    Charge: PLD epsilon below 3 at delta 1e-5 for the completed job. Threshold 5 of 6 is the default; one silo may be
    absent. Updates of this plan stay within +-2 a coordinate, so that the quantiser's range of 4 hardly ever clips.

    A query shows the coordinator 16 * 2 = 32 bits. A record's columns together have 37 bits of entropy, and a trunk of
    48 units in float32 could be solved for all of them; here the router loses 2.5 points by it.
    """
    return {
        "federation": federation,
        "name": "rand-hie",
        "roster_version": roster_version,
        "silos": list(silos),
        "schema": schema_document(),
        # One target head in training, which every site then tunes for itself.
        "model": {"kind": "mlp", "hidden": [16], "personal": []},
        "training": {
            "rounds": ROUNDS,
            "local_steps": 3,
            "sampling_rate": 0.4,
            "clip_norm": 0.5,
            "noise_multiplier": 5.0,
            "target_weight": 0.55,
            "learning_rate": 4.0,
            "server_learning_rate": 1.0,
        },
        "routing_fit": {
            "sums": SUMS,
            "noise_multiplier": 22.0,
            "step_size": 16.0,
            "momentum": 0.9,
            "average_from": 11,
            "clip_norm": 0.5,
            "shared_target": True,
            "largest_silo": 100_000,
            "public_sizes": {name: PUBLIC_SIZE[name] for name in silos},
        },
        "personal_head": {
            "steps": 20,
            "sampling_rate": 0.2,
            "noise_multiplier": 8.0,
            "clip_norm": 0.5,
            "learning_rate": 1.0,
        },
        "evaluation": {"noise_multiplier": 14.0, "held_out": 0.15, "largest_silo": 100_000},
        "privacy": {"delta": DELTA},
        "secure_aggregation": {
            "threshold": 5,
            "minimum_cohort": 5,
            "colluders": 1,
            "clip": 4.0,
            "fraction_bits": 24,
        },
        "queries": {"embedding_bits": 2},
        "deadlines": {"gather_seconds": 20.0, "train_seconds": 60.0, "step_seconds": 10.0},
    }


def plan_text(federation: str, roster_version: int, silos: tuple[str, ...] = SITES) -> str:
    """`plan_document` as TOML, as an operator would write it."""
    document = plan_document(federation, roster_version, silos)
    schema = document.pop("schema")
    lines: list[str] = []

    def pairs(table: dict[str, Any]) -> None:
        # JSON's strings, numbers, booleans and arrays of these are TOML too.
        lines.extend(f"{key} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, dict))

    pairs(document)
    for name, table in document.items():
        if isinstance(table, dict):
            lines.append(f"\n[{name}]")
            pairs(table)
            for inner, values in table.items():
                if isinstance(values, dict):
                    lines.append(f"\n[{name}.{inner}]")
                    pairs(values)
    lines.append("\n[schema]")
    pairs({key: value for key, value in schema.items() if key not in ("target", "columns")})
    lines.append("\n[schema.target]")
    pairs(schema["target"])
    for column in schema["columns"]:
        lines.append("\n[[schema.columns]]")
        pairs(column)
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class RandFiles:
    """What `write_files` wrote.

    Args:
        train: each site's own file: person id, features and target of its training persons only.
        public_size: each site's public approximate number of training persons.
        held_out: the querier's file: features of all sites' held-out persons, shuffled; no id, site or target.
        truth: site and label of each record of `held_out`, in its order.
        majority: the commonest label among each site's training records.
    """

    train: dict[str, Path]
    public_size: dict[str, int]
    held_out: Path
    truth: tuple[Truth, ...]
    majority: dict[str, str]


def write_files(directory: Path) -> RandFiles:
    """Split the study by site, hold 30 % of each site's persons out, and write one CSV each into `directory`.

    Who is held out depends on the person's id alone, through SHA-256: the same on every machine, all records of a
    person together.

    Raises:
        OSError: the directory cannot be written.
    """
    with resources.as_file(resources.files("feddrm.demo") / "data" / "randhie.csv.gz") as source:
        table = read_table(source)
    features = [column["name"] for column in schema_document()["columns"]]
    site = [f"site-{number}" for number in table.columns["site"]]
    label = [LABELS[float(amount) > 0] for amount in table.columns[_TARGET]]
    held = _held_out(table, site)
    directory.mkdir(parents=True, exist_ok=True)

    train = {}
    for name in SITES:
        rows = [row for row in range(len(table)) if site[row] == name and not held[row]]
        train[name] = directory / f"{name}.csv"
        _write(train[name], table, [_PATIENT, *features, _TARGET], rows)

    rows = sorted((row for row in range(len(table)) if held[row]), key=lambda row: _digest(table, row))
    queries = directory / "held-out.csv"
    _write(queries, table, features, rows)
    majority = {
        name: Counter(label[row] for row in range(len(table)) if site[row] == name and not held[row]).most_common(1)[0][
            0
        ]
        for name in SITES
    }
    truth = tuple(Truth(site[row], label[row]) for row in rows)
    return RandFiles(train, dict(PUBLIC_SIZE), queries, truth, majority)


def _held_out(table: Table, site: list[str]) -> list[bool]:
    persons: dict[str, set[str]] = {name: set() for name in SITES}
    for name, person in zip(site, table.columns[_PATIENT], strict=True):
        persons[name].add(person)
    chosen: set[str] = set()
    for members in persons.values():
        ordered = sorted(members, key=lambda person: hashlib.sha256(b"held out " + person.encode()).digest())
        chosen.update(ordered[: round(HELD_OUT * len(ordered))])
    return [person in chosen for person in table.columns[_PATIENT]]


def _digest(table: Table, row: int) -> bytes:
    return hashlib.sha256(f"order {table.columns[_PATIENT][row]} {table.columns['year'][row]}".encode()).digest()


def _write(path: Path, table: Table, names: list[str], rows: list[int]) -> None:
    columns = [table.columns[name] for name in names]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([column[row] for column in columns] for row in rows)
