"""feddrm-audit: verifies and recomputes privacy budgets offline, without torch, without trusting either side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feddrm.audit.budget import budget_json, budget_text, recompute_exhibit
from feddrm.audit.cases import case_json, case_text, judge_case
from feddrm.audit.court import judge
from feddrm.audit.exhibit import read_exhibit, read_exhibits, read_root
from feddrm.audit.forks import judge_forks, read_findings
from feddrm.audit.leaves import compare, show_json, show_text
from feddrm.audit.openings import judge_opening, read_opening
from feddrm.audit.present import (
    difference_json,
    difference_text,
    forks_text,
    verdict_json,
    verdict_text,
)
from feddrm.cli import Format, FormatOption, emit, make_app, now_ms, printable, run
from feddrm.contract.errors import ExitCode, UsageError
from feddrm.contract.files import atomic_write

app = make_app("feddrm-audit", "Verify and recompute the privacy budgets of a federation, offline.")


Bundles = Annotated[list[Path], typer.Argument(help="Ledgers exported by hospitals; give all that you have.")]
Root = Annotated[Path, typer.Option("--root", help="The file federation.root, from the operator.")]
Fingerprint = Annotated[
    str | None, typer.Option("--fingerprint", help="The federation's fingerprint, from another source than ROOT.")
]

Transcripts = Annotated[
    list[Path] | None,
    typer.Option("--transcript", metavar="FILE", help="What feddrm-aggregator transcript wrote; may be repeated."),
]


@app.command()
def verify(
    bundles: Bundles,
    root: Root,
    transcripts: Transcripts = None,
    fingerprint: Fingerprint = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Check signatures, trees, plans, witnesses and caps, and recompute every epsilon from its events.

    Each bundle is also held against what the others witnessed of it, and against what hospitals acknowledged in the
    coordinator's transcripts. A transcript that does not hold fails itself and no ledger. Exit code 6 if anything
    fails.
    """
    anchor = read_root(root, fingerprint)
    judged = judge(anchor, read_exhibits(bundles), transcripts or ())
    emit(form, verdict_json(anchor, judged), verdict_text(anchor, judged))
    if not judged.verified:
        raise typer.Exit(ExitCode.VERIFICATION)


@app.command()
def show(
    bundle: Annotated[Path, typer.Argument(help="A ledger exported by a hospital.")],
    form: FormatOption = Format.TEXT,
) -> None:
    """Print a ledger's leaves, one a line, as they stand. Verifies nothing."""
    exhibit = read_exhibit(bundle)
    emit(form, show_json(exhibit), show_text(exhibit))


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(help="A bundle of a ledger.")],
    second: Annotated[Path, typer.Argument(help="Another bundle of the same ledger.")],
    form: FormatOption = Format.TEXT,
) -> None:
    """Compare two bundles of one ledger: the first leaf in which they differ, and which extends the other.

    Exit code 6 unless both can be exports of one append-only ledger. Checks no signature.
    """
    one, other = read_exhibit(first), read_exhibit(second)
    if one.bundle.origin != other.bundle.origin:
        raise UsageError(
            f"{first} is of {one.bundle.origin}, {second} of {other.bundle.origin}.",
            remedy="Compare two bundles of one ledger.",
        )
    found = compare(one, other)
    emit(form, difference_json(one, other, found), difference_text(one, other, found))
    if not found.sound:
        raise typer.Exit(ExitCode.VERIFICATION)


@app.command()
def recompute(
    bundles: Bundles,
    delta: Annotated[float, typer.Option("--delta", help="At which to state epsilon, for instance 1e-6.")],
    form: FormatOption = Format.TEXT,
) -> None:
    """Recompute epsilon at another delta, per job and for life, by PLD and by RDP. Verifies nothing else."""
    found = [(exhibit, recompute_exhibit(exhibit, delta)) for exhibit in read_exhibits(bundles)]
    emit(form, budget_json(found), budget_text(found))


@app.command("fork-proof")
def fork_proof(
    files: Annotated[list[Path], typer.Argument(help="Bundles, signed heads (notes) or fork proofs.")],
    root: Root,
    roster: Annotated[
        Path | None,
        typer.Option("--roster", help="A signed roster, where no bundle brings one (startup/roster.signed)."),
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the proof into this file.")] = None,
    fingerprint: Fingerprint = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Look for heads that a hospital signed and that cannot belong to one ledger; make or verify the proof.

    A proof file needs nothing but the federation's root to be verified. Exit code 6 if a fork is proven, 0 if none is.
    """
    forks, remarks = judge_forks(read_root(root, fingerprint), read_findings(files, roster))
    if out is not None and len(forks) > 1:
        raise UsageError(f"{len(forks)} hospitals forked, and a file proves one.", remedy="Give one's files at a time.")
    document = {
        "proven": [{"silo": fork.silo, "origin": fork.origin, "shows": fork.shows} for fork in forks],
        "remarks": list(remarks),
        "file": str(out) if out is not None and forks else None,
    }
    if out is not None and forks:
        atomic_write(out, forks[0].file.encode())
    emit(
        form, document, forks_text(forks, remarks) + (f"\nThe proof is in {out}." if out is not None and forks else "")
    )
    if forks:
        raise typer.Exit(ExitCode.VERIFICATION)


@app.command()
def evidence(
    files: Annotated[list[Path], typer.Argument(help="Evidence that a coordinator or silo kept.")],
    root: Root,
    roster: Annotated[
        Path | None, typer.Option("--roster", help="The signed roster of that time, where a file brings none.")
    ] = None,
    fingerprint: Fingerprint = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Judge evidence of a silo's misconduct in secure aggregation: who is guilty, if anybody is proven to be.

    Exit code 6 if somebody is, 0 if nothing is proven. An honest silo is never found guilty.
    """
    anchor = read_root(root, fingerprint)
    found = [judge_case(anchor, path, roster) for path in files]
    emit(form, {"cases": [case_json(judged) for judged in found]}, "\n".join(map(case_text, found)))
    if any(judged.verdict.guilty for judged in found):
        raise typer.Exit(ExitCode.VERIFICATION)


@app.command()
def opening(
    file: Annotated[Path, typer.Argument(help="What feddrm-silo ledger open wrote.")],
    bundles: Bundles,
    root: Root,
    fingerprint: Fingerprint = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Check what a hospital opened to you alone: which records it read, or which update it sent.

    The first bundle is the ledger; it is verified with the others first. Exit code 6 if it fails, or if the leaf
    commits to something else.
    """
    anchor, exhibits = read_root(root, fingerprint), read_exhibits(bundles)
    verdict, opened = judge(anchor, exhibits).ledgers[0], judge_opening(read_opening(file), exhibits[0])
    text = opened.says if verdict.verified else f"{opened.says}\nNOT VERIFIED: {exhibits[0].path} (feddrm-audit verify)"
    document = {
        "opens": opened.holds,
        "says": opened.says,
        "sha256": opened.digest.hex() or None,
        "ledger_verified": verdict.verified,
    }
    emit(form, document, text)
    if not (opened.holds and verdict.verified):
        raise typer.Exit(ExitCode.VERIFICATION)


@app.command()
def canary(
    files: Annotated[list[Path], typer.Argument(help="What hospitals wrote with feddrm-silo canary.")],
    seed: Annotated[
        str | None, typer.Option("--seed", metavar="HEX", help="The seed that you gave the hospital beforehand.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="The signed plan whose training was to be run; needs --root.")
    ] = None,
    root: Annotated[Path | None, typer.Option("--root", help="The file federation.root, from the operator.")] = None,
    fingerprint: Fingerprint = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Judge runs with canaries: a lower bound of epsilon at 99.9 % confidence, against the claim.

    Without --plan, event and claim are the hospital's own word. Exit code 6 if the bound exceeds the claim, the claim
    is below what its event costs, the seed is another, or the run is not of the plan's training at the plan's charge.
    """
    # Not at the top: no other command measures anything.
    from feddrm.audit.canary import judge_runs, parse_seed, read_terms, runs_json, runs_text

    if (plan is None) != (root is None) or (fingerprint is not None and root is None):
        raise UsageError("--plan and --root go together, and --fingerprint with them.")
    terms = read_terms(read_root(root, fingerprint), plan) if plan is not None and root is not None else None
    judged = judge_runs(files, parse_seed(seed), terms)
    emit(form, {"runs": runs_json(judged)}, runs_text(judged))
    if not all(one.passed for one in judged):
        raise typer.Exit(ExitCode.VERIFICATION)


@app.command()
def card(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Directories of releases, with card.md.")],
    root: Root,
    roster: Annotated[
        Path | None, typer.Option("--roster", help="A signed roster in the place of the directory's own.")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write the card that this version makes of one release."),
    ] = None,
    fingerprint: Fingerprint = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Check a model card: the coordinator signed these bytes for that release, and they follow from plan and statement.

    Exit code 6 if one does not hold, or if its text cannot be checked, since another version is said to have worded it.
    --write gives a card that needs no such word: made here from what the operator, the hospitals and, for the noise
    found, the coordinator signed.
    """
    from feddrm.audit.card import cards_json, cards_text, judge_card

    if write is not None and len(folders) > 1:
        raise UsageError(f"{len(folders)} releases, and a file holds the card of one.", remedy="Give one at a time.")
    anchor = read_root(root, fingerprint)
    found = [judge_card(anchor, folder, roster) for folder in folders]
    own = found[0].written if write is not None else None
    if write is not None and own is not None:
        atomic_write(write, own.encode())
    said = "" if write is None else f"\nWhat this version writes is in {write}."
    if write is not None and own is None:
        said = f"\n{write} is not written: nothing signed would stand behind it."
    document = {"cards": cards_json(found), "file": str(write) if own is not None else None}
    emit(form, document, printable(cards_text(found) + said))
    if not all(one.verified for one in found):
        raise typer.Exit(ExitCode.VERIFICATION)


@app.command()
def report(
    bundles: Bundles,
    root: Root,
    html: Annotated[Path, typer.Option("--html", help="The file to write.")],
    transcripts: Transcripts = None,
    fingerprint: Fingerprint = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Verify, and write the result as one HTML file that a hospital's board can read and print.

    It loads nothing and runs no script. Exit code 6 if anything fails; the file is written all the same.
    """
    # Loads the template engine, which no other command but card needs.
    from feddrm.audit.report import render_report

    anchor = read_root(root, fingerprint)
    judged = judge(anchor, read_exhibits(bundles), transcripts or ())
    atomic_write(html, render_report(anchor, judged, now_ms=now_ms()).encode())
    said = f"{'Verified' if judged.verified else 'NOT VERIFIED'}: see {html}"
    emit(form, {"file": str(html), "verified": judged.verified}, said)
    if not judged.verified:
        raise typer.Exit(ExitCode.VERIFICATION)


def main() -> None:
    """Entry point of the command."""
    run(app)


if __name__ == "__main__":
    main()
