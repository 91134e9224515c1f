"""`feddrm`: what anybody may try without a federation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from feddrm.cli import Format, FormatOption, emit, make_app, require_extra, run

app = make_app("feddrm", "FedDRM across hospitals: differential privacy, secure aggregation, and a private router.")


@app.callback()
def _about() -> None:
    """Keeps `demo` a sub-command although it is the only one."""


@app.command()
def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where all files go and stay. Default: feddrm-demo-<time> here.")
    ] = None,
    kill_silo: Annotated[
        str | None,
        typer.Option(
            "--kill-silo",
            metavar="NAME@ROUND",
            help="SIGKILL this hospital in this round, after it dealt its key shares and before it sends its masked "
            "update, and start it again two rounds later. Example: site-3@4",
        ),
    ] = None,
    record_traffic: Annotated[
        Path | None,
        typer.Option("--record-traffic", help="Record every message at the coordinator into this file.", hidden=True),
    ] = None,
    canary: Annotated[
        str | None,
        typer.Option("--plant-canary", help="Add a person with this id to every hospital's records.", hidden=True),
    ] = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Run a whole federation on this machine: one coordinator, six hospitals, real data.

    The six sites of the RAND Health Insurance Experiment train together with differential privacy under secure
    aggregation; held-out patients are routed and asked about; every ledger is audited. Takes about two minutes.
    """
    require_extra("feddrm demo", "silo", ["torch", "opacus"])
    from rich.console import Console

    from feddrm.demo.run import Kill, Settings
    from feddrm.demo.run import run as run_demo
    from feddrm.demo.table import render

    console = Console(stderr=True)
    settings = Settings(
        directory or Path(time.strftime("feddrm-demo-%Y%m%d-%H%M%S")),
        Kill.parse(kill_silo) if kill_silo else None,
        record_traffic,
        canary,
    )
    result = run_demo(settings, lambda text: console.print(f"[bold]·[/] {text}"))
    if form is Format.JSON:
        emit(form, result, "")
    else:
        render(result, Console())


def main() -> None:
    """Entry point of `feddrm`."""
    run(app)


if __name__ == "__main__":
    main()
