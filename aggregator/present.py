"""The status as JSON and as text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from feddrm.cli import table
from feddrm.contract.operator_messages import Status
from feddrm.contract.schedule import NAMES
from feddrm.method.noise_meter import noise_words


def status_document(status: Status) -> dict[str, Any]:
    """Plain data; hashes in hexadecimal."""
    return {
        "federation": status.federation,
        "roster_version": status.roster_version,
        "plan": status.plan.hex(),
        "job": status.job,
        "state": status.state,
        "round": status.round,
        "rounds": status.rounds,
        "stage": NAMES.get(status.stage, ""),
        "attempt": status.attempt,
        "step": status.step,
        "waiting_for": list(status.waiting_for),
        "detail": status.detail,
        "release": status.release,
        "evaluation": {f.name: {"value": f.value, "deviation": f.deviation} for f in status.figures},
        "noise": None if status.noise is None else {**asdict(status.noise), "says": noise_words(status.noise)},
        "silos": [
            {
                "name": silo.name,
                "connected": silo.connected,
                "state": silo.state,
                "rounds_joined": silo.rounds_joined,
                "capacity": silo.capacity,
            }
            for silo in status.silos
        ],
        "history": [
            {
                "round": entry.round,
                "stage": NAMES[entry.stage],
                "attempt": entry.attempt,
                "outcome": entry.outcome,
                "cohort": list(entry.cohort),
                "survivors": list(entry.survivors),
                "mask_keys_opened": list(entry.mask_keys_opened),
                "sum": entry.sum.hex(),
            }
            for entry in status.history
        ],
    }


def status_text(document: dict[str, Any]) -> str:
    """For people."""
    job = document["job"] or "no job"
    head = f"{document['federation']}: {job}, {document['state']}"
    if document["rounds"]:
        head += f", round {document['round']} of {document['rounds']} ({document['stage']})"
    if document["attempt"] > 1:
        head += f", attempt {document['attempt']}"
    rows = [
        (s["name"], "yes" if s["connected"] else "no", s["state"], s["rounds_joined"], s["capacity"])
        for s in document["silos"]
    ]
    lines = [head, *([document["detail"]] if document["detail"] else [])]
    lines += [
        f"evaluation: {name} {100 * figure['value']:.1f} % (noise of {100 * figure['deviation']:.1f} points)"
        for name, figure in document["evaluation"].items()
    ]
    if document["noise"]:
        lines.append(f"noise: {document['noise']['says']}")
    if rows:
        lines.append(table(("silo", "connected", "state", "rounds", "capacity"), rows))
    return "\n".join(lines)
