"""feddrm-aggregator: the command line of operator and coordinator."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from aggregator import enrolment, release_cli, transcript_cli
from aggregator.options import OperatorOption, server_in
from feddrm.cli import Format, FormatOption, emit, make_app, printable, run
from feddrm.contract.errors import ExitCode, InputError, UsageError, in_shell
from feddrm.memory import keep_freed_memory

if TYPE_CHECKING:
    from feddrm.contract.operator_messages import Status

app = make_app("feddrm-aggregator", "Run a federation's coordinator, and operate it.")
plan_app = make_app("plan", "Check and sign plans.")
job_app = make_app("job", "Start and stop jobs.")
app.add_typer(plan_app, name="plan", help="Check and sign plans.")
app.add_typer(job_app, name="job", help="Start and stop jobs.")
app.add_typer(release_cli.app, name="release", help="List, describe and publish releases.")
enrolment.register(app)
transcript_cli.register(app)

PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")]
# A release that waits for the operator is as far as a job gets by itself.
_AT_REST: Final = {
    "completed": ExitCode.DONE,
    "release ready": ExitCode.DONE,
    "stopped": ExitCode.INPUT,
    "failed": ExitCode.VERIFICATION,
}


@app.command()
def serve(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The server's directory.")],
    daily_queries: Annotated[int, typer.Option(min=0, help="Routes that one querier may have in a day.")] = 100_000,
    queries_per_second: Annotated[float, typer.Option(min=0.01, help="Steady rate of one querier.")] = 200.0,
    record_traffic: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the coordinator until it is stopped (Ctrl-C or SIGTERM). A job goes on where it was."""
    keep_freed_memory()
    from aggregator.serve import Limits
    from aggregator.serve import serve as serve_coordinator

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    where = server_in(directory)
    asyncio.run(
        serve_coordinator(
            where,
            limits=Limits(daily_queries, queries_per_second),
            recording=record_traffic,
            started=lambda address: print(f"The coordinator listens on {address}.", flush=True),
        )
    )


@plan_app.command("check")
def plan_check(
    plan: PlanArgument,
    server: Annotated[Path | None, typer.Option("--server", metavar="DIR", help="Compare with its roster.")] = None,
    roster: Annotated[Path | None, typer.Option("--roster", metavar="FILE", help="Compare with this roster.")] = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Check a plan and say what its numbers mean."""
    from aggregator.explain import explain
    from feddrm.contract.files import load_document
    from feddrm.contract.plan import Plan

    meaning = explain(load_document(plan, Plan), _roster(server, roster))
    text = meaning.text()
    if not meaning.problems:
        signed = in_shell(plan.with_suffix(".signed"))
        text += f"\nSign it by:\n  feddrm-aggregator plan sign {in_shell(plan)} --operator OPERATOR -o {signed}"
    emit(form, meaning.document(), text)
    if meaning.problems:
        raise InputError(f"{plan}: {meaning.problems[0]}")


@plan_app.command("sign")
def plan_sign(
    plan: PlanArgument,
    operator: OperatorOption,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the signed plan goes.")],
    form: FormatOption = Format.TEXT,
) -> None:
    """Sign a plan with the operator's key, after saying what it means."""
    from aggregator.explain import explain
    from aggregator.homes import load_operator_home
    from feddrm.contract.files import atomic_write, load_document
    from feddrm.contract.plan import Plan
    from feddrm.contract.signed_plan import sign_plan

    document = load_document(plan, Plan)
    home = load_operator_home(operator)
    meaning = explain(document, home.roster)
    if meaning.problems:
        raise InputError(f"{plan}: {meaning.problems[0]}", remedy="Correct the plan; nothing was signed.")
    signed = sign_plan(document, home.key)
    atomic_write(output, signed.signed.to_json().encode())
    emit(
        form,
        {**meaning.document(), "plan": signed.hash.hex(), "file": str(output)},
        f"{meaning.text()}\nSigned as {output}; its hash is {signed.hash.hex()}. Start it by:\n"
        f"  feddrm-aggregator job start {in_shell(output)} --operator {in_shell(operator)}",
    )


@job_app.command("start")
def job_start(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The signed plan.")],
    operator: OperatorOption,
    form: FormatOption = Format.TEXT,
) -> None:
    """Start the job of a signed plan."""
    from aggregator.operator_client import OperatorClient
    from feddrm.contract.errors import MalformedError
    from feddrm.contract.files import read_bounded
    from feddrm.contract.signed import Signed

    try:
        signed = Signed.from_json(read_bounded(plan))
    except MalformedError as error:
        raise InputError(f"{plan} is not a signed plan.", remedy="Run: feddrm-aggregator plan sign") from error
    with OperatorClient(operator) as client:
        receipt = client.start_job(signed)
    emit(
        form,
        {"plan": receipt.plan.hex(), "state": receipt.state},
        f"Started job {receipt.plan.hex()[:16]}. Follow it by:\n"
        f"  feddrm-aggregator status --watch --operator {in_shell(operator)}",
    )


@job_app.command("stop")
def job_stop(
    operator: OperatorOption,
    reason: Annotated[str, typer.Option(help="What silos and the log are told.")] = "no reason given",
    form: FormatOption = Format.TEXT,
) -> None:
    """Stop the running job. Budget that was spent stays spent."""
    from aggregator.operator_client import OperatorClient

    with OperatorClient(operator) as client:
        plan = client.status().plan
        if not plan:
            raise InputError("No job was started.")
        receipt = client.stop_job(plan, reason)
    emit(form, {"plan": receipt.plan.hex(), "state": receipt.state}, f"Job {receipt.plan.hex()[:16]}: {receipt.state}.")


@app.command()
def status(
    operator: OperatorOption,
    watch: Annotated[bool, typer.Option("--watch", help="Show every change until the job needs nothing more.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="With --watch: wait for a job where none was started.")] = False,
    patience: Annotated[
        float, typer.Option("--patience", min=0, help="With --watch: seconds for which the coordinator may be away.")
    ] = 600.0,
    form: FormatOption = Format.TEXT,
) -> None:
    """Show the newest job: what it does and whom it waits for."""
    from aggregator.operator_client import OperatorClient
    from aggregator.present import status_document, status_text
    from aggregator.watch import Watch

    def show(newest: Status) -> None:
        document = status_document(newest)
        emit(form, document, status_text(document))
        sys.stdout.flush()

    def say(text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)

    if wait and not watch:
        raise UsageError("--wait goes with --watch.")
    with OperatorClient(operator) as client:
        if not watch:
            show(client.status())
            return
        watching = Watch(client.status, show, say, wait, patience, time.sleep, time.monotonic)
        raise typer.Exit(_AT_REST.get(watching.follow(lambda s: s.state in _AT_REST).state, ExitCode.DONE))


@app.command()
def log(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The server's directory.")],
    last: Annotated[int, typer.Option(min=1, max=100_000, help="How many lines.")] = 100,
    form: FormatOption = Format.TEXT,
) -> None:
    """Show what the coordinator did, oldest first."""
    from aggregator.homes import check_server_directory
    from aggregator.store import read_journal

    where = server_in(directory)
    check_server_directory(where)
    lines = [(now, printable(text)) for now, text in read_journal(where, last)]
    emit(
        form,
        {"lines": [{"time_ms": now, "text": text} for now, text in lines]},
        "\n".join(f"{_clock(now)}  {text}" for now, text in lines),
    )


def _roster(server: Path | None, roster: Path | None) -> Any:
    if server is not None:
        from aggregator.homes import load_server_home

        return load_server_home(server).roster
    if roster is not None:
        from feddrm.contract.documents import parse_body
        from feddrm.contract.files import read_bounded
        from feddrm.contract.roster import Roster
        from feddrm.contract.signed import Signed

        # Names and version only are compared: whoever trusts a roster verifies it when the plan is signed.
        return parse_body(Signed.from_json(read_bounded(roster)).body, Roster, what=str(roster))
    return None


def _clock(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


def main() -> None:
    """Entry point of `feddrm-aggregator`."""
    run(app)


if __name__ == "__main__":
    main()
