"""Medians and ranges of the rows of `bench.routing_fit`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the seeds of each setting, the ranges in brackets."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for each in rows:
        groups.setdefault((each["data"], each["noise"], each["epsilon_stage2"]), []).append(each)
    table = []
    for (label, noise, spent), members in groups.items():
        line = {
            "data": label,
            "noise": noise,
            "fit": spent,
            "total": members[0]["epsilon_total"],
            "seeds": len(members),
        }
        for name in ("routing", "system"):
            before, after = ([member[f"{name}_stage{stage}"] for member in members] for stage in (1, 2))
            line[name] = _spread(after) if None in before else f"{statistics.median(before):.3f} -> {_spread(after)}"
        mixed = [member["system_mixed"] for member in members]
        line["with_shared_head"] = "" if None in mixed else _spread(mixed)
        line |= {name: statistics.median(member[name] for member in members) for name in ("own_silo", "random_silo")}
        table.append(line)
    return table


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"
