"""`feddrm compare`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from feddrm.cli import Format, FormatOption, emit, progress, require_extra

PRIVATE_DATA = "not private: tuning on patients' data costs budget"


def compare(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PRESET|FILE.toml",
            help="What to compare: cifar10-paper, heart, mnist-dp, mnist-scale, rand, or a TOML file.",
        ),
    ],
    data: Annotated[Path, typer.Option("--data", help="Folder of the public data sets.")] = Path("../shared/data"),
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
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="So many seeds: 0, 1, 2, ...")] = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Compare methods, by what a query from outside gets, on the code that hospitals run.

    Every method at every epsilon, number of silos and seed: accuracy of the routed system and of its rivals, worst
    silo, bytes. Writes rows.json, rows.csv and report.html, a page that needs no network. Stopped at any time, it goes
    on from there.
    """
    require_extra("feddrm compare", "compare", ["torch", "opacus"])
    from feddrm.compare import report, run, settings, store
    from feddrm.contract.files import exclusive

    wanted = settings.narrowed(settings.load(what), methods, epsilons, seeds)
    if wanted.data.source == "cifar10":
        require_extra("feddrm compare with CIFAR-10", "compare", ["PIL"])
    place = store.Store(directory or Path(f"feddrm-compare-{wanted.name}"), wanted)
    notes = [PRIVATE_DATA] if wanted.data.files is not None else []
    with exclusive(place.folder / "lock", what="Another comparison"):
        with progress("Rounds", run.rounds(wanted)) as bar:
            run.run(wanted, data, place, processes, bar.advance)
        rows = report.rows(wanted, place)
        report.write(wanted, rows, notes, place.folder)
    if notes:
        typer.echo(f"These results are {PRIVATE_DATA}.", err=True)
    emit(form, {"comparison": wanted.name, "notes": notes, "rows": rows}, report.text(rows))
