"""feddrm-query: which hospital, and what does it say, without showing the patient to the coordinator."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddrm.cli import Format, FormatOption, make_app, now_ms, printable, progress, require_extra, run
from feddrm.query import enrolment

if TYPE_CHECKING:
    from feddrm.query.ask import Outcome
    from feddrm.query.route import Routed

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
InFlightOption = Annotated[int, typer.Option("--in-flight", min=1, max=256, help="Rows asked at once.")]


@app.command("route")
def route_command(
    file: TableArgument,
    directory: DirectoryOption,
    form: FormatOption = Format.TEXT,
    out: OutOption = None,
    patience: PatienceOption = 300.0,
    extractor: ExtractorOption = None,
) -> None:
    """Name the hospital whose patients each row of FILE resembles most.

    Where the plan has second opinions and two hospitals are nearly tied, both are named, in the plan's order: which of
    them is nearer stays with the router.
    """
    require_extra("feddrm-query route", "query", ["torch"])
    from feddrm.query import present

    present.routes(asyncio.run(_route(file, directory, patience, extractor))).publish(form, out)


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
    """Ask, sealed, what the model of the hospital that each row of FILE is routed to says.

    Where two hospitals are nearly tied, both are asked, each of them sees the row, and what is printed is the mean of
    their answers; if one gives none, it is named (missing) and the other's stands alone. An answer counts at each
    hospital that gave one.
    """
    require_extra("feddrm-query ask", "query", ["torch"])
    from feddrm.query import present

    outcome, total = asyncio.run(_ask(file, directory, patience, in_flight, extractor))
    error = present.unanswered(outcome)
    if error is not None and not outcome.answers:
        raise error
    present.answers(outcome).publish(form, out)
    for silence in outcome.silences:
        print(printable(present.silence(silence, outcome)), file=sys.stderr)
    if error is None:
        return
    last = "" if outcome.failure is None else f"{outcome.failure} "
    print(printable(f"{last}{len(outcome.answers)} of {total} rows were answered."), file=sys.stderr)
    raise typer.Exit(error.exit_code)


async def _route(file: Path, directory: Path, patience: float, extractor: Path | None) -> list[tuple[Routed, ...]]:
    from feddrm.features import read_table
    from feddrm.query.coordinator import Patience
    from feddrm.query.route import batches, route_rows
    from feddrm.query.session import note, session

    records = read_table(file)
    async with session(directory, Patience(patience, say=note)) as (coordinator, home, model):
        codes = model.codes(model.features(records, extractor))
        rows: list[tuple[Routed, ...]] = []
        with progress("Routing", len(codes)) as shown:
            for batch in batches(len(codes)):
                routed = await route_rows(coordinator, model, home, codes, batch, now_ms())
                rows += routed
                shown.advance(len(routed))
    return rows


async def _ask(
    file: Path, directory: Path, patience: float, in_flight: int, extractor: Path | None
) -> tuple[Outcome, int]:
    from feddrm.features import read_table
    from feddrm.query.ask import Asker
    from feddrm.query.coordinator import Patience
    from feddrm.query.question import Questions
    from feddrm.query.session import note, session

    records = read_table(file)
    async with session(directory, Patience(patience, say=note)) as (coordinator, home, model):
        features = model.features(records, extractor)
        codes = model.codes(features)
        with progress("Asking", len(codes)) as shown:
            asker = Asker(Questions(coordinator, model, home, features, now_ms), codes, in_flight, shown.advance)
            return await asker.run(), len(codes)


def main() -> None:
    """The command line."""
    run(app)


if __name__ == "__main__":
    main()
