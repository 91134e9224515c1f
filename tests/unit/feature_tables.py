"""A small schema and tables of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from feddrm.contract.schema import Schema
from feddrm.features import Dataset, encode, read_table

AGE = {"kind": "numeric", "name": "age", "lower": 0, "upper": 100, "missing": ["", "?"]}
PRESSURE = {"kind": "binned", "name": "pressure", "edges": [100, 120], "missing": ["", "0"]}
SEX = {"kind": "categorical", "name": "sex", "categories": ["f", "m"], "missing_indicator": False}
TARGET = {"kind": "threshold", "column": "num", "operator": ">", "value": 0, "labels": ["well", "ill"]}
GOOD = "id,age,pressure,sex,num\np1,50,110,f,0\np2,75,130,m,2\np1,?,0,f,1\n"


def schema(target: dict[str, Any] = TARGET, *columns: dict[str, Any]) -> Schema:
    return Schema.model_validate({"patient": "id", "target": target, "columns": columns or (AGE, PRESSURE, SEX)})


def encoded(path: Path, **options: Any) -> Dataset:
    return encode(read_table(path), schema(), **options)
