"""The operator's enrolment commands: init, enroll, roster show|publish|renew|remove."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aggregator.founding import found_federation
from aggregator.homes import load_operator_home
from aggregator.operations import enroll, read_requests, remove_members, renew
from aggregator.options import OperatorOption
from feddrm.cli import Format, FormatOption, confirm, emit, now_ms, table
from feddrm.contract.authority import Address, day
from feddrm.contract.errors import InputError, in_shell
from feddrm.contract.roster import Roster
from feddrm.enrolment import YesOption, checked_name

ServerOption = Annotated[
    Path | None, typer.Option("--server", metavar="DIR", help="Also install the new roster in this server's directory.")
]


def register(app: typer.Typer) -> None:
    """Add `init`, `enroll` and `roster show|publish|renew|remove` to `feddrm-aggregator`."""

    @app.command("init")
    def init(
        directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where operator/ and server/ are made.")],
        name: Annotated[str, typer.Option("--name", help="The federation's name.")],
        address: Annotated[str, typer.Option("--address", help="HOST:PORT at which silos reach the server.")],
        form: FormatOption = Format.TEXT,
    ) -> None:
        """Found a federation: the operator's keys and the server's, in separate directories."""
        where = Address.parse(address)
        anchor = found_federation(directory, checked_name(name, option="--name"), where, now_ms())
        emit(
            form,
            {
                "federation": anchor.federation,
                "fingerprint": anchor.fingerprint,
                "operator": anchor.operator.hex(),
                "operator_directory": str(directory / "operator"),
                "server_directory": str(directory / "server"),
                "root": str(directory / "server" / "federation.root"),
            },
            f"Founded the federation {anchor.federation} at {where}. Its fingerprint, which members need:\n\n"
            f"  {anchor.fingerprint}\n\n"
            f"{directory / 'operator'} can add members and start jobs: move it off the server's machine, for instance\n"
            f"  mv {in_shell(directory / 'operator')} /media/usb/operator\n"
            f"{directory / 'server'} is all that the server needs; give federation.root in it to auditors.\n"
            "Then enrol the members, whose `init` makes requests, and start the server:\n"
            f"  feddrm-aggregator enroll *.request --operator OPERATOR --server {in_shell(directory / 'server')}\n"
            f"  feddrm-aggregator serve {in_shell(directory / 'server')}",
        )

    @app.command("enroll")
    def enroll_command(
        requests: Annotated[list[Path], typer.Argument(metavar="REQUEST...", help="Requests that members sent.")],
        operator: OperatorOption,
        server: ServerOption = None,
        yes: YesOption = False,
        form: FormatOption = Format.TEXT,
    ) -> None:
        """Enrol members after comparing fingerprints; all of one command land in one new roster."""
        home = load_operator_home(operator)
        candidates = read_requests(home, requests)
        rows = [(c.request.role, c.request.name, c.change.upper(), c.fingerprint) for c in candidates]
        if not confirm(
            table(("role", "name", "", "fingerprint"), rows),
            "Did each member read you exactly this fingerprint?",
            yes=yes,
        ):
            raise InputError("Nobody was enrolled.")
        roster = enroll(operator, candidates, server, now_ms())
        emit(
            form,
            {
                "roster_version": roster.version,
                "federation_fingerprint": home.anchor.fingerprint,
                "members": [
                    {
                        "name": c.request.name,
                        "role": c.request.role,
                        "change": c.change,
                        "fingerprint": c.fingerprint,
                        "kit": str(c.kit),
                    }
                    for c in candidates
                ],
            },
            "\n".join(
                (
                    f"Roster version {roster.version} lists {len(roster.members)} members; plans name it as "
                    f"roster_version = {roster.version}.",
                    *(f"Send {c.kit} to {c.request.name}." for c in candidates),
                    "Tell them the federation's fingerprint by another way than the kit:",
                    "",
                    f"  {home.anchor.fingerprint}",
                    *_how_to_publish(operator, server),
                )
            ),
        )

    roster_app = typer.Typer(help="The signed list of members.", no_args_is_help=True)
    app.add_typer(roster_app, name="roster")

    @roster_app.command("show")
    def show(operator: OperatorOption, form: FormatOption = Format.TEXT) -> None:
        """Show the operator's newest roster."""
        home = load_operator_home(operator)
        rows = [(m.role, m.name, m.fingerprint) for m in home.roster.members]
        emit(
            form,
            _document(home.roster) | {"fingerprint": home.anchor.fingerprint},
            f"{home.federation}, roster version {home.roster.version}, valid until {day(home.roster.expires_ms)}\n"
            f"fingerprint {home.anchor.fingerprint}\n" + table(("role", "name", "fingerprint"), rows),
        )

    @roster_app.command("publish")
    def publish(operator: OperatorOption, form: FormatOption = Format.TEXT) -> None:
        """Give a running server the operator's newest roster, over the network."""
        from aggregator.operator_client import OperatorClient

        home = load_operator_home(operator)
        with OperatorClient(operator) as client:
            receipt = client.publish_roster(home.signed_roster)
        emit(
            form,
            {"roster_version": receipt.version},
            f"The server has roster version {receipt.version} now, and tells every agent that is connected.\n"
            "Each hospital looks at it and approves it: feddrm-silo roster show, then roster accept.",
        )

    @roster_app.command("renew")
    def renew_command(operator: OperatorOption, server: ServerOption = None, form: FormatOption = Format.TEXT) -> None:
        """Renew the roster and the operator's certificate, and with --server the server's; members stay as they are."""
        roster = renew(operator, server, now_ms())
        emit(form, _document(roster), "\n".join((_issued(roster), *_how_to_publish(operator, server))))

    @roster_app.command("remove")
    def remove(
        names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Members that leave.")],
        operator: OperatorOption,
        server: ServerOption = None,
        yes: YesOption = False,
        form: FormatOption = Format.TEXT,
    ) -> None:
        """Issue a roster without some members; the server turns their certificates away."""
        if not confirm(f"To be removed: {', '.join(names)}", "Remove them from the federation?", yes=yes):
            raise InputError("Nobody was removed.")
        roster = remove_members(operator, names, server, now_ms())
        emit(form, _document(roster), "\n".join((_issued(roster), *_how_to_publish(operator, server))))


def _issued(roster: Roster) -> str:
    return (
        f"Issued roster version {roster.version} with {len(roster.members)} members, "
        f"valid until {day(roster.expires_ms)}. Members approve it with: roster accept"
    )


def _how_to_publish(operator: Path, server: Path | None) -> tuple[str, ...]:
    publish = f"  feddrm-aggregator roster publish --operator {in_shell(operator)}"
    if server is not None:
        return (
            f"The roster is installed in {server}. Start the server, or tell one that runs already:",
            f"  feddrm-aggregator serve {in_shell(server)}",
            publish,
        )
    return ("The server does not know this roster yet. Once it runs, tell it by:", publish)


def _document(roster: Roster) -> dict[str, object]:
    return {
        "federation": roster.federation,
        "roster_version": roster.version,
        "expires": day(roster.expires_ms),
        "members": [
            {"name": m.name, "role": m.role, "identity": m.identity.hex(), "fingerprint": m.fingerprint}
            for m in roster.members
        ],
    }
