"""The enrolment commands of silos and queriers: init, join, roster. Both roles mount them (design section 4)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feddrm.cli import Format, FormatOption, confirm, emit, now_ms, table
from feddrm.contract.errors import InputError
from feddrm.contract.home import ROOT_FILE, init_member, join_member
from feddrm.contract.identity import Role
from feddrm.contract.kit import load_federation_root
from feddrm.contract.names import check_name
from feddrm.contract.pin import RosterPin
from feddrm.contract.roster import Roster

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="This member's directory.")]
DirectoryOption = Annotated[Path, typer.Option("--dir", metavar="DIR", help="This member's directory.")]
NameOption = Annotated[str, typer.Option("--name", help="Its name in the federation: a-z, 0-9 and hyphens.")]
FingerprintOption = Annotated[
    str, typer.Option("--fingerprint", help="The federation's fingerprint, from the operator by another way.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts that have compared already.")]


def checked_name(name: str, *, option: str) -> str:
    """`name` if it may name a federation or a member.

    Raises:
        InputError: it may not.
    """
    try:
        return check_name(name)
    except ValueError as error:
        raise InputError(f"{option} {name!r}: {error}.") from error


def register_member(app: typer.Typer, role: Role, command: str) -> None:
    """Add `init`, `join` and `roster show|accept` to a member's command line.

    Args:
        command: the command line's name, for the hints that it prints.
    """

    @app.command("init")
    def init(directory: Directory, name: NameOption, form: FormatOption = Format.TEXT) -> None:
        """Make keys on this machine, and the request that the operator enrols."""
        made = init_member(directory, checked_name(name, option="--name"), role)
        emit(
            form,
            {"name": name, "request": str(made.request), "fingerprint": made.fingerprint},
            f"Made the keys of {name} in {directory / 'keys'}; they never leave this machine.\n"
            f"Send {made.request} to the operator and read this fingerprint to them:\n\n  {made.fingerprint}\n\n"
            f"The operator sends {name}.kit back and tells you the federation's fingerprint by another way. Then run:\n"
            f"  {command} join {name}.kit --dir {directory} --fingerprint FINGERPRINT",
        )

    @app.command("join")
    def join(
        kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit that the operator sent.")],
        directory: DirectoryOption,
        fingerprint: FingerprintOption,
        form: FormatOption = Format.TEXT,
    ) -> None:
        """Join the federation of a kit, if it is the one whose fingerprint you were told."""
        joined = join_member(directory, kit, fingerprint, role, now_ms())
        subject, roster = joined.kit.subject, joined.kit.roster
        lines = [f"{subject.name} has joined {subject.federation} at {joined.kit.address}."]
        if joined.again:
            lines.append("It has a new certificate now; stop an agent that runs and start it again to use it.")
        if joined.pending:
            lines += [
                "The kit's roster differs from the one that is pinned here. Look at it, then approve it:",
                f"  {command} roster show --dir {directory}",
                f"  {command} roster accept --dir {directory}",
            ]
        else:
            lines.append(_members(roster))
        lines += _next_steps(role, command, directory, roster)
        emit(
            form,
            {
                "name": subject.name,
                "federation": subject.federation,
                "address": str(joined.kit.address),
                "operator": roster.operator.hex(),
                "roster_version": roster.version,
                "roster_pending": joined.pending,
            },
            "\n".join(lines),
        )

    roster_app = typer.Typer(help="The pinned list of members and their keys.", no_args_is_help=True)
    app.add_typer(roster_app, name="roster")

    @roster_app.command("show")
    def show(directory: DirectoryOption, form: FormatOption = Format.TEXT) -> None:
        """Show the pinned roster, and how one that waits for approval differs."""
        pin = load_pin(directory)
        pinned, waiting = pin.roster(), pin.pending()
        text = f"Pinned: version {pinned.version}\n{_members(pinned)}"
        document: dict[str, object] = {"version": pinned.version, "members": _listed(pinned), "pending": None}
        if waiting is not None:
            _, roster, changes = waiting
            text += f"\n\nWaiting for approval: version {roster.version}\n" + "\n".join(changes.lines())
            text += f"\nAccept it with: {command} roster accept --dir {directory}"
            document["pending"] = {"version": roster.version, "differences": list(changes.lines())}
        emit(form, document, text)

    @roster_app.command("accept")
    def accept(directory: DirectoryOption, yes: YesOption = False, form: FormatOption = Format.TEXT) -> None:
        """Approve the waiting roster after seeing who is new and whose keys changed."""
        pin = load_pin(directory)
        waiting = pin.pending()
        if waiting is None:
            raise InputError(
                "No roster waits for approval.",
                remedy="A newer one arrives by itself once the operator has published it: "
                + ("the agent must run." if role is Role.SILO else f"{command} route or ask fetches it."),
            )
        _, roster, changes = waiting
        shown = "\n".join((f"Roster version {roster.version} differs from the pinned one:", *changes.lines()))
        if changes.adds_trust:
            shown += (
                "\nCompare each fingerprint with the one that the member itself reads to you (its `init` printed it; "
                "`feddrm-silo status` does)."
            )
        if not confirm(shown, "Do you know all of these members, and trust these keys?", yes=yes):
            raise InputError("The roster was not accepted; the pinned one stays.")
        pin.accept(roster.version, now_ms())
        emit(
            form,
            {"version": roster.version, "differences": list(changes.lines())},
            f"Roster version {roster.version} is pinned; the approval is recorded in {pin.directory}.\n"
            + (
                f"An agent that runs takes it up by itself: for queries at once, for jobs between two of them. See: "
                f"{command} status {directory}"
                if role is Role.SILO
                else "It holds from the next route or ask on."
            ),
        )


def load_pin(directory: Path) -> RosterPin:
    """The roster files of a member that has joined.

    Raises:
        InputError: it has not, or the trust anchor is damaged.
    """
    startup = directory / "startup"
    if not startup.is_dir():
        raise InputError(f"{directory} has not joined a federation yet.", remedy="Run join first.")
    return RosterPin(startup, load_federation_root(startup / ROOT_FILE))


def _next_steps(role: Role, command: str, directory: Path, roster: Roster) -> list[str]:
    if role is not Role.SILO:
        return ["Once the operator has published a release, ask:", f"  {command} route FILE.csv --dir {directory}"]
    local = directory / "local"
    return [
        f"Next, say what this hospital allows in {local / 'policy.toml'} and where its records are in "
        f"{local / 'data.toml'}.",
        f'In policy.toml, jobs.operators = ["{roster.operator.hex()}"] lets this operator\'s plans be considered.',
        "Then run:",
        f"  {command} preflight {directory}",
        f"  {command} serve {directory}",
    ]


def _members(roster: Roster) -> str:
    rows = [(m.role, m.name, m.fingerprint) for m in roster.members]
    return table(("role", "name", "fingerprint"), rows) if rows else "No members yet."


def _listed(roster: Roster) -> list[dict[str, str]]:
    return [
        {"name": m.name, "role": m.role, "identity": m.identity.hex(), "fingerprint": m.fingerprint}
        for m in roster.members
    ]
