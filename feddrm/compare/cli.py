"""`feddrm compare`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddrm.cli import Format, FormatOption, emit, progress, require_extra
from feddrm.contract.errors import UsageError

if TYPE_CHECKING:
    from feddrm.compare.settings import Settings
    from feddrm.compare.store import Store

PRIVATE_DATA = "not private: tuning on patients' data costs budget"
CHOOSING = "those of training patients who were left out, for choosing settings: the held-out records were not seen"


def compare(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PRESET|FILE.toml",
            help="What to compare: cifar10-paper, heart, mnist-dp, mnist-scale, rand, or a TOML file.",
        ),
    ],
    data: Annotated[
        Path, typer.Option("--data", envvar="FEDDRM_DATA", help="Folder of the public data sets; rand needs none.")
    ] = Path("../shared/data"),
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Where results go; run again, it goes on there. Default: feddrm-compare-NAME here."),
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="How many at once. Default: one a core.")
    ] = os.cpu_count() or 1,
    methods: Annotated[str | None, typer.Option("--methods", help="Only these, separated by commas.")] = None,
    epsilons: Annotated[
        str | None, typer.Option("--epsilons", help="Only these, separated by commas; inf is no privacy.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, max=1000, help="So many seeds: 0, 1, 2, ...")] = None,
    validation: Annotated[
        float | None,
        typer.Option(
            "--validation",
            min=0.01,
            max=0.5,
            help="Judge by this share of the training patients, who are not trained on: for choosing settings.",
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Folder in which the plots are written as SVG files, too.")
    ] = None,
    drift: Annotated[
        bool, typer.Option("--drift", help="Instead: what silos forget when their labels change, with and without EWC.")
    ] = False,
    form: FormatOption = Format.TEXT,
) -> None:
    """Compare methods, by what a query from outside gets, on the code that hospitals run.

    Every method at every epsilon, number of silos and seed: accuracy of the routed system and of its rivals, worst
    silo, bytes. Writes rows.json, rows.csv and report.html, a page that needs no network; with --drift, drift.json and
    drift.csv. Stopped at any time, it goes on from there.
    """
    require_extra("feddrm compare", "compare", ["torch", "opacus"])
    from feddrm.compare import settings, store
    from feddrm.contract.locks import exclusive

    wanted = settings.narrowed(settings.load(what), methods, epsilons, seeds, validation)
    if wanted.data.source == "cifar10":
        require_extra("feddrm compare with CIFAR-10", "compare", ["PIL"])
    if drift and figures is not None:
        raise UsageError("--drift draws no plots.", remedy="Leave out --figures.")
    place = store.Store(directory or Path(f"feddrm-compare-{wanted.name}"), wanted)
    notes = [PRIVATE_DATA] if wanted.data.files is not None else []
    if wanted.data.validation is not None:
        notes.append(CHOOSING)
    with exclusive(place.folder / "lock", what="Another comparison"):
        kind, rows, text = (_drift if drift else _cells)(wanted, data, place, processes, notes, figures)
    for note in notes:
        typer.echo(f"These results are {note}.", err=True)
    emit(form, {"comparison": wanted.name, "notes": notes, kind: rows}, text)


def _cells(
    wanted: Settings, data: Path, place: Store, processes: int, notes: Sequence[str], figures: Path | None
) -> tuple[str, list[dict[str, Any]], str]:
    from feddrm.compare import report, run
    from feddrm.contract.files import atomic_write, make_directory

    with progress("Rounds", run.rounds(wanted)) as bar:
        run.run(wanted, data, place, processes, bar.advance)
    rows = report.rows(wanted, place)
    report.write(wanted, rows, notes, place.folder)
    if figures is not None:
        make_directory(figures)
        for name, picture in report.figures(wanted, rows).items():
            atomic_write(figures / name, picture.encode())
    where = f"Every figure stands in {place.folder}: report.html, rows.csv, rows.json."
    return "rows", rows, f"{report.text(rows)}\n\n{where}"


def _drift(
    wanted: Settings, data: Path, place: Store, processes: int, notes: Sequence[str], _: Path | None
) -> tuple[str, list[dict[str, Any]], str]:
    from feddrm.compare import drift_runs, run

    runs = drift_runs.runs(wanted)
    with progress("Rounds", len(runs) * wanted.train.rounds) as bar:
        run.each(runs, drift_runs.run, wanted, data, place, processes, bar.advance)
    rows = drift_runs.rows(wanted, place)
    drift_runs.write(rows, notes, place.folder)
    return "drift", rows, f"{drift_runs.text(rows)}\n\nEvery row stands in {place.folder}: drift.csv, drift.json."
