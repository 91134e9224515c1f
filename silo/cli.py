"""feddrm-silo: the hospital's command line. Nothing here loads torch until there is something to train or predict."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from feddrm.cli import Format, FormatOption, emit, make_app, now_ms, require_extra, run, table
from feddrm.contract.errors import ExitCode, UnreachableError, in_shell
from feddrm.memory import keep_freed_memory
from silo import enrolment, ledger_cli

app = make_app("feddrm-silo", "The hospital's agent: trains and answers here, under this hospital's own policy.")
data_app = make_app("data", "The hospital's table.")
app.add_typer(data_app, name="data")
enrolment.register(app)
ledger_cli.register(app)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="This silo's directory.")]
PlanOption = Annotated[Path, typer.Option("--plan", metavar="PLAN", help="A plan.toml, or a signed plan.")]

_STOP_SECONDS: Final = 20.0


@app.command()
def serve(
    directory: Directory,
    keep: Annotated[Path | None, typer.Option("--demo-keep-updates", hidden=True)] = None,
    kill_at: Annotated[int | None, typer.Option("--demo-kill-at", hidden=True)] = None,
) -> None:
    """Run the agent until it is stopped."""
    require_extra("feddrm-silo serve", "silo", ["torch", "opacus"])
    keep_freed_memory()
    from silo.agent import Demo
    from silo.assembly import serve as serve_agent

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        logging.getLogger("silo").warning(
            "DEMONSTRATION ONLY: every update is written to %s in clear, which secure aggregation exists to hide.", keep
        )
    asyncio.run(serve_agent(directory, Demo(keep, kill_at)))


@app.command()
def stop(directory: Directory, form: FormatOption = Format.TEXT) -> None:
    """Stop the agent of this directory and wait until it is gone."""
    from silo.home import Home, running

    home = Home(directory)
    home.check()
    process = running(home)
    if process is None:
        emit(form, {"stopped": False, "running": False}, f"No agent runs on {directory}.")
        return
    os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while running(home) == process:
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"The agent (process {process}) has not stopped within {_STOP_SECONDS:.0f} s.",
                remedy=f"Nothing is lost if you run: kill -9 {process}",
            )
        time.sleep(0.05)
    emit(form, {"stopped": True, "running": False, "process": process}, f"Stopped process {process}.")


@app.command()
def status(directory: Directory, form: FormatOption = Format.TEXT) -> None:
    """Show the agent, its job, and why it declined one."""
    from silo.report import as_text, status_of

    document = status_of(directory)
    emit(form, document, as_text(document))


@app.command("preflight")
def preflight_command(
    directory: Directory,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN", help="Check data and policy against it.")
    ] = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Check all that an agent needs before it runs; says what to do about each failure."""
    from feddrm.contract.home import load_silo_home
    from silo.home import Home
    from silo.preflight import load_plan, preflight

    member = load_silo_home(directory)
    checks = preflight(Home(directory), member, None if plan is None else load_plan(plan, member), now_ms())
    passed = all(check.passed for check in checks)
    lines = [f"{'PASS' if c.passed else 'FAIL'}  {c.name}: {c.detail} {c.remedy}".rstrip() for c in checks]
    if passed:
        lines.append(f"Ready. Run: feddrm-silo serve {in_shell(directory)}")
    document = {
        "passed": passed,
        "checks": [{"name": c.name, "passed": c.passed, "detail": c.detail, "remedy": c.remedy} for c in checks],
    }
    emit(form, document, "\n".join(lines))
    if not passed:
        raise typer.Exit(ExitCode.INPUT)


@app.command()
def predict(
    directory: Directory,
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="A table; the target column may be absent.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the JSON there instead.")] = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Predict with this silo's own newest model. Nothing leaves the hospital."""
    from feddrm.contract.home import load_silo_home
    from silo.home import Home
    from silo.tables import predict as predict_table
    from silo.tables import write_rows

    home = Home(directory)
    home.check()
    document, rows = predict_table(home, load_silo_home(directory).name, file)
    if out is not None:
        write_rows(document, out)
        emit(form, {"out": str(out), "rows": len(rows)}, f"Wrote {len(rows)} predictions to {out}.")
        return
    emit(form, document, table(("row", "label", "probability"), rows))


@app.command("canary")
def canary_command(
    directory: Directory,
    plan: PlanOption,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Where the result goes.")],
    seed: Annotated[
        str | None, typer.Option("--seed", metavar="HEX", help="The auditor's 32 bytes; fresh ones without it.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Audit so many rounds of the plan, not all.")] = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Audit this installation's private training with canaries: made-up patients whose traces are looked for.

    It costs no privacy: no record of the hospital is read, its ledger is not opened, and nothing is sent.
    """
    require_extra("feddrm-silo canary", "silo", ["torch", "opacus"])
    from silo.canary import read_seed, run_canaries

    result = run_canaries(directory, plan, out, rounds, read_seed(seed))
    judge = f"Judge: feddrm-audit canary {in_shell(out)}"
    text = f"Wrote {out}: seed {result.seed.hex()}, epsilon {result.claimed:.3f} claimed. {judge}"
    emit(form, {"out": str(out), "seed": result.seed.hex(), "claimed": result.claimed}, text)


@data_app.command("check")
def data_check(
    directory: Directory,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The table.")],
    plan: PlanOption,
    form: FormatOption = Format.TEXT,
) -> None:
    """Check a table against a plan's schema, as training would read it."""
    from feddrm.contract.home import load_silo_home
    from silo.preflight import load_plan
    from silo.tables import check_table

    found = check_table(file, load_plan(plan, load_silo_home(directory)))
    emit(form, found, f"{file}: {found['records']} records of {found['patients']} patients fit the schema.")


def main() -> None:
    """Entry point."""
    run(app)


if __name__ == "__main__":
    main()
