"""The commands about the ledger and the keys that sign it: export, evidence, open, recover; keys new, keys take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feddrm.cli import Format, FormatOption, emit, make_app, now_ms
from feddrm.contract.errors import in_shell
from feddrm.enrolment import DirectoryOption, FingerprintOption

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="This silo's directory.")]


def register(app: typer.Typer) -> None:
    """Add `ledger` and `keys` to `feddrm-silo`."""
    ledger_app = make_app("ledger", "The privacy ledger.")
    keys_app = make_app("keys", "Replace this silo's keys.")
    app.add_typer(ledger_app, name="ledger")
    app.add_typer(keys_app, name="keys")

    @ledger_app.command("export")
    def ledger_export(
        directory: Directory,
        out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Where the bundle goes.")],
        form: FormatOption = Format.TEXT,
    ) -> None:
        """Export the ledger for an auditor; no private key and no record goes with it."""
        from silo.export import export_ledger

        leaves = export_ledger(directory, out)
        root = directory / "startup" / "federation.root"
        check = f"feddrm-audit verify {in_shell(out)} --root {in_shell(root)}"
        emit(form, {"out": str(out), "leaves": leaves}, f"Wrote {leaves} leaves to {out}. Check: {check}")

    @ledger_app.command("evidence")
    def ledger_evidence(
        directory: Directory,
        out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Where the files go.")],
        form: FormatOption = Format.TEXT,
    ) -> None:
        """Export what this silo holds against others: its accusations that carry evidence, a file each.

        A file names the accused, the accuser and the cohort; it holds no private key of this silo but those of single
        pairs in sessions that are over.
        """
        from silo.export import export_evidence

        files = export_evidence(directory, out)
        root = directory / "startup" / "federation.root"
        lines = [f"Wrote {len(files)} files of evidence to {out}."]
        lines += [f"Judge it: feddrm-audit evidence {in_shell(file)} --root {in_shell(root)}" for file in files]
        emit(form, {"out": str(out), "files": [str(file) for file in files]}, "\n".join(lines))

    @ledger_app.command("recover")
    def recover_command(
        directory: Directory,
        files: Annotated[
            list[Path] | None,
            typer.Argument(metavar="FILE...", help="Exports of this and other hospitals, and signed plans."),
        ] = None,
        without: Annotated[
            list[str] | None,
            typer.Option("--without", metavar="NAME", help="A hospital whose export cannot be had; may be repeated."),
        ] = None,
        form: FormatOption = Format.TEXT,
    ) -> None:
        """Begin a new ledger in the place of a lost one, charged in full for every job that anybody can show.

        Needs new keys (keys new, keys take --lost) and the export of every other hospital of the roster, or --without
        it, which the new ledger records. The other hospitals take this silo back only if the new ledger answers for the
        newest head that each of them saw and carries the jobs that it saw charged. Run it again with more files if one
        of them does not.
        """
        from silo.recovery import recover

        done = recover(directory, files or (), now_ms(), without or ())
        lines = [
            f"The ledger answers for {size} leaves that were signed by the key {key.hex()[:16]}."
            for size, key in done.lost
        ]
        names = ", ".join(done.jobs) or "none"
        lines.append(f"{len(done.jobs)} jobs are charged in full ({names}); epsilon for life {done.epsilon:.4f}.")
        if done.aside is not None:
            lines.append(f"What was in its place lies in {done.aside}.")
        lines += [
            "When the other hospitals have approved the roster with the new key (roster accept), go on:",
            f"  feddrm-silo serve {in_shell(directory)}",
        ]
        document = {
            "lost": [{"leaves": size, "key": key.hex()} for size, key in done.lost],
            "jobs": list(done.jobs),
            "epsilon_for_life": done.epsilon,
            "set_aside": None if done.aside is None else str(done.aside),
        }
        emit(form, document, "\n".join(lines))

    @ledger_app.command("open")
    def open_command(
        directory: Directory,
        leaf: Annotated[int, typer.Argument(metavar="LEAF", help="Number of a DATASET or COMMIT leaf, from 0.")],
        out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Where the opening goes.")],
        form: FormatOption = Format.TEXT,
    ) -> None:
        """Open one commitment for an auditor: which records were read, or which update was sent.

        The file is confidential. It holds no record; it opens that one leaf and no other.
        """
        from silo.opening import open_leaf

        what = open_leaf(directory, leaf, out)
        emit(
            form,
            {"leaf": leaf, "out": str(out)},
            f"{out} opens leaf {leaf}: {what}. Give it to the auditor alone, who checks it by:\n"
            f"  feddrm-audit opening {in_shell(out)} EXPORT --root federation.root",
        )

    @keys_app.command("new")
    def new(directory: Directory, form: FormatOption = Format.TEXT) -> None:
        """Make new keys beside those in use, and a request for them. The old ones stay in use until `keys take`."""
        from silo.rekey import make_next_keys

        made = make_next_keys(directory)
        kit = in_shell(made.request.with_suffix(".kit").name)
        emit(
            form,
            {"request": str(made.request), "fingerprint": made.fingerprint},
            f"Made new keys in {directory / 'keys.next'}.\n"
            f"Send {made.request} to the operator and read this fingerprint to them:\n\n  {made.fingerprint}\n\n"
            "Stop the agent when the kit comes back, then run:\n"
            f"  feddrm-silo keys take {kit} --dir {in_shell(directory)} --fingerprint FINGERPRINT",
        )

    @keys_app.command("take")
    def take(
        kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit that the operator sent for the new keys.")],
        directory: DirectoryOption,
        fingerprint: FingerprintOption,
        lost: Annotated[
            bool, typer.Option("--lost", help="The ledger is lost for good: destroy the old keys without handing over.")
        ] = False,
        form: FormatOption = Format.TEXT,
    ) -> None:
        """Take the new keys into use, and hand the ledger over to them; then the old keys are destroyed.

        If the ledger cannot be handed over the old keys stay in use: they are needed if it is found.
        """
        from silo.rekey import take_keys

        taken = take_keys(directory, kit, fingerprint, now_ms(), lost=lost)
        lines = [f"The new keys of {taken.kit.subject.name} are in use."]
        if taken.problem:
            lines += [
                f"The ledger could not be handed over: {taken.problem}. Begin another one that answers for it:",
                f"  feddrm-silo ledger recover {in_shell(directory)} EXPORT...",
            ]
        lines += ["Approve the roster with the new keys:", f"  feddrm-silo roster accept --dir {in_shell(directory)}"]
        emit(form, {"handed_over": not taken.problem, "problem": taken.problem or None}, "\n".join(lines))
