"""feddrm-audit: verifies and recomputes privacy budgets offline, without torch, without trusting either side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feddrm.audit.court import judge
from feddrm.audit.exhibit import read_exhibit, read_exhibits, read_root
from feddrm.audit.present import show_json, show_text, verdict_json, verdict_text
from feddrm.cli import Format, FormatOption, emit, make_app, run
from feddrm.contract.errors import ExitCode

app = make_app("feddrm-audit", "Verify and recompute the privacy budgets of a federation, offline.")


@app.command()
def verify(
    bundles: Annotated[list[Path], typer.Argument(help="Ledgers exported by hospitals; give all that you have.")],
    root: Annotated[Path, typer.Option("--root", help="The file federation.root, from the operator.")],
    fingerprint: Annotated[
        str | None, typer.Option("--fingerprint", help="The federation's fingerprint, from another source than ROOT.")
    ] = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Check signatures, trees, plans, witnesses and caps, and recompute every epsilon from its events.

    Each bundle is also held against what the others witnessed of it. Exit code 6 if anything fails.
    """
    anchor = read_root(root, fingerprint)
    verdicts = judge(anchor, read_exhibits(bundles))
    emit(form, verdict_json(anchor, verdicts), verdict_text(anchor, verdicts))
    if not all(verdict.verified for verdict in verdicts):
        raise typer.Exit(ExitCode.VERIFICATION)


@app.command()
def show(
    bundle: Annotated[Path, typer.Argument(help="A ledger exported by a hospital.")],
    form: FormatOption = Format.TEXT,
) -> None:
    """Print a ledger's leaves, one a line, as they stand. Verifies nothing."""
    exhibit = read_exhibit(bundle)
    emit(form, show_json(exhibit), show_text(exhibit))


def main() -> None:
    """Entry point of the command."""
    run(app)


if __name__ == "__main__":
    main()
