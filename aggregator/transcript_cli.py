"""The operator's command for auditors: transcript."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aggregator.options import server_in
from feddrm.cli import Format, FormatOption, emit
from feddrm.contract.errors import in_shell


def register(app: typer.Typer) -> None:
    """Add `transcript` to `feddrm-aggregator`."""

    @app.command()
    def transcript(
        directory: Annotated[Path, typer.Argument(metavar="DIR", help="The server's directory; a server may run.")],
        out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the transcript goes.")],
        form: FormatOption = Format.TEXT,
    ) -> None:
        """Write how every round of every job ended, signed by the server, for an auditor."""
        from aggregator.homes import load_server_home
        from aggregator.transcripts import export

        where = server_in(directory)
        jobs, rounds = export(load_server_home(where), out)
        emit(
            form,
            {"out": str(out), "jobs": jobs, "rounds": rounds},
            f"Wrote {rounds} rounds of {jobs} jobs to {out}. The auditor holds the hospitals' ledgers against it:\n"
            f"  feddrm-audit verify *.ledger --transcript {in_shell(out)} --root {in_shell(where / 'federation.root')}",
        )
