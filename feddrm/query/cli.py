"""feddrm-query: which hospital, and what does it say, without showing the patient to the coordinator."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddrm.cli import Format, FormatOption, emit, make_app, now_ms, printable, progress, require_extra, run, table
from feddrm.query import enrolment

if TYPE_CHECKING:
    from feddrm.contract.errors import FeddrmError
    from feddrm.query.ask import Outcome, Refusal

app = make_app("feddrm-query", "Ask a federation which hospital resembles a patient, and what its model says.")
enrolment.register(app)

TableArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Patients: CSV with a header, also gzip.")]
DirectoryOption = Annotated[Path, typer.Option("--dir", metavar="DIR", help="This querier's directory.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the rows here (readable by you only).")
]
PatienceOption = Annotated[
    float, typer.Option("--patience", min=0, help="Seconds to ask again while the other side is busy or away.")
]
ExtractorOption = Annotated[
    Path | None, typer.Option("--extractor", metavar="FILE", help="The plan's feature extractor, if it has one.")
]
InFlightOption = Annotated[int, typer.Option("--in-flight", min=1, max=256, help="Asks at once.")]


@app.command("route")
def route_command(
    file: TableArgument,
    directory: DirectoryOption,
    form: FormatOption = Format.TEXT,
    out: OutOption = None,
    patience: PatienceOption = 300.0,
    extractor: ExtractorOption = None,
) -> None:
    """Name the hospital whose patients each row of FILE resembles most."""
    require_extra("feddrm-query route", "query", ["torch"])
    rows = asyncio.run(_route(file, directory, patience, extractor))
    _publish(form, out, ("row", "silo"), rows)


@app.command("ask")
def ask_command(
    file: TableArgument,
    directory: DirectoryOption,
    form: FormatOption = Format.TEXT,
    out: OutOption = None,
    patience: PatienceOption = 300.0,
    in_flight: InFlightOption = 32,
    extractor: ExtractorOption = None,
) -> None:
    """Ask, sealed, what the model of the hospital that each row of FILE is routed to says."""
    require_extra("feddrm-query ask", "query", ["torch"])
    outcome, total = asyncio.run(_ask(file, directory, patience, in_flight, extractor))
    rows = [(answer.row + 1, answer.silo, answer.label, answer.probability) for answer in outcome.answers]
    headers = ("row", "silo", "label", "probability")
    errors = [*([outcome.failure] if outcome.failure else []), *(refusal.error for refusal in outcome.refusals)]
    if not errors:
        _publish(form, out, headers, rows)
        return
    if not rows:
        raise errors[0]
    _publish(form, out, headers, rows, incomplete=errors[0], refusals=outcome.refusals)
    for refusal in outcome.refusals:
        print(printable(f"{refusal.error} (Not answered: {_rows(refusal.rows)}.)"), file=sys.stderr)
    last = "" if outcome.failure is None else f"{outcome.failure} "
    print(printable(f"{last}{len(rows)} of {total} rows were answered."), file=sys.stderr)
    raise typer.Exit(errors[0].exit_code)


def _rows(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number + 1) for number in numbers[:10])
    more = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return f"row{'s' if len(numbers) > 1 else ''} {shown}{more}"


async def _route(file: Path, directory: Path, patience: float, extractor: Path | None) -> list[tuple[int, str]]:
    from feddrm.features import read_table
    from feddrm.query.coordinator import Patience
    from feddrm.query.route import batches, route_rows
    from feddrm.query.session import note, session

    records = read_table(file)
    async with session(directory, Patience(patience, say=note)) as (coordinator, home, model):
        codes = model.codes(model.features(records, extractor))
        rows: list[tuple[int, str]] = []
        with progress("Routing", len(codes)) as shown:
            for batch in batches(len(codes)):
                routed = await route_rows(coordinator, model, home, codes, batch, now_ms())
                rows += [(one.row + 1, one.silo.name) for one in routed]
                shown.advance(len(routed))
    return rows


async def _ask(
    file: Path, directory: Path, patience: float, in_flight: int, extractor: Path | None
) -> tuple[Outcome, int]:
    from feddrm.features import read_table
    from feddrm.query.ask import Asker
    from feddrm.query.coordinator import Patience
    from feddrm.query.session import note, session

    records = read_table(file)
    async with session(directory, Patience(patience, say=note)) as (coordinator, home, model):
        features = model.features(records, extractor)
        codes = model.codes(features)
        with progress("Asking", len(codes)) as shown:
            asker = Asker(coordinator, model, home, features, codes, now_ms, in_flight, shown.advance)
            return await asker.run(), len(codes)


def _publish(
    form: Format,
    out: Path | None,
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    incomplete: FeddrmError | None = None,
    refusals: Sequence[Refusal] = (),
) -> None:
    document: dict[str, object] = {"rows": [dict(zip(headers, row, strict=True)) for row in rows]}
    if incomplete is not None:
        document["incomplete"] = str(incomplete)
        document["refused"] = [
            {"silo": refusal.silo, "reason": str(refusal.error), "rows": [row + 1 for row in refusal.rows]}
            for refusal in refusals
        ]
    if out is None:
        emit(form, document, table(headers, rows))
        return
    from feddrm.contract.files import atomic_write

    text = json.dumps(document) if form is Format.JSON else _csv(headers, rows)
    # Labels are about patients, so nobody else on this machine may read them.
    atomic_write(out, text.encode(), mode=0o600)
    summary: Mapping[str, object] = {"out": str(out), "rows_written": len(rows)}
    emit(form, summary, f"Wrote {len(rows)} rows to {out}.")


def _csv(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(headers)
    writer.writerows(rows)
    return stream.getvalue()


def main() -> None:
    """The command line."""
    run(app)


if __name__ == "__main__":
    main()
