"""The commands that read tables: `predict` and `data check`."""

from __future__ import annotations

import json
from pathlib import Path

from feddrm.contract.errors import InputError
from feddrm.contract.files import atomic_write
from feddrm.contract.plan import Plan
from feddrm.features import encode, read_table
from feddrm.method.progress import answering_model
from feddrm.method.shared_head import SharedHead
from silo.context import Work
from silo.data import with_features
from silo.database import NO_RESTORE
from silo.home import Home
from silo.state import State
from silo.workshop import make_predictor, require_torch


def predict(home: Home, me: str, file: Path) -> tuple[dict[str, object], list[tuple[int, str, float]]]:
    """The silo's newest model on a table of its own patients; the target and patient columns may be absent.

    Args:
        me: this silo's name.

    Returns:
        ({"rows": [{"row", "label", "probability"}]}, the same as tuples): rows count from 1 in the table's order.

    Raises:
        InputError: no model yet, or the table does not fit the schema.
        MissingExtraError: torch is not installed.
    """
    state = State.read(home.database)
    try:
        job = state.last_job()
        if job is None:
            raise InputError(f"{home.root} has no model yet.", remedy="It gets one from a job: feddrm-silo serve DIR.")
        work = Work.of(job.signed.body)
        model, personal = state.model(job.plan, job.round), state.personal(job.plan)
    finally:
        state.close()
    if model is None or personal is None:
        raise InputError(f"{home.database} holds no model of its last round.", remedy=NO_RESTORE)
    plan = work.plan.at(me)
    require_torch(home.settings().torch_threads)
    dataset = with_features(home, plan, encode(read_table(file), plan.schema_, targets=False))
    answering = answering_model(work.plan, work.layout, model)
    common, shared = SharedHead.split(work.plan, work.layout, answering, me)
    predictor = make_predictor(plan, common, personal[1], home.settings().torch_threads, shared)
    prediction = predictor.predict(dataset.features)
    classes = plan.schema_.target.classes
    rows = [
        (number, classes[chosen], round(float(probabilities[chosen]), 6))
        for number, (chosen, probabilities) in enumerate(
            zip(prediction.classes.tolist(), prediction.probabilities, strict=True), start=1
        )
    ]
    return {"rows": [{"row": n, "label": label, "probability": p} for n, label, p in rows]}, rows


def write_rows(document: dict[str, object], path: Path) -> None:
    """Write predictions to a file, JSON, readable by this user only.

    Raises:
        InputError: it cannot be written.
    """
    atomic_write(path, json.dumps(document).encode(), mode=0o600)


def check_table(file: Path, plan: Plan) -> dict[str, object]:
    """Check a table against a plan's schema, as training would read it.

    Raises:
        InputError: names file, line, column and what is wrong.
    """
    dataset = encode(read_table(file), plan.schema_)
    patients = len(set(dataset.patients))
    return {"file": str(file), "records": len(dataset), "patients": patients, "features": plan.schema_.width}
