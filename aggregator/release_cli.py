"""The operator's commands for releases: list, card, publish."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from aggregator.options import OperatorOption
from feddrm.cli import Format, FormatOption, emit, make_app, table
from feddrm.contract.errors import InputError

app = make_app("release", "List, describe and publish releases.")


@app.command("list")
def release_list(operator: OperatorOption, form: FormatOption = Format.TEXT) -> None:
    """List all releases, newest first."""
    from aggregator.operator_client import OperatorClient

    with OperatorClient(operator) as client:
        found = client.releases().releases
    rows = [
        (r.id, r.plan.hex()[:16], f"{r.signatures} of {r.threshold}", "published" if r.published else "") for r in found
    ]
    emit(
        form,
        {
            "releases": [
                {
                    "id": r.id,
                    "plan": r.plan.hex(),
                    "signatures": r.signatures,
                    "threshold": r.threshold,
                    "published": r.published,
                }
                for r in found
            ]
        },
        table(("release", "plan", "signatures", ""), rows) if rows else "There is no release yet.",
    )


@app.command("card")
def release_card(
    release: Annotated[str, typer.Argument(metavar="ID", help="As shown by release list.")],
    operator: OperatorOption,
    form: FormatOption = Format.TEXT,
) -> None:
    """Print a release's model card (Markdown), from the plan and the statement that silos signed.

    What it says of noise in the sums is the coordinator's word. In the release's directory the card is signed:
    feddrm-audit card verifies it there.
    """
    from aggregator.homes import load_operator_home
    from aggregator.operator_client import OperatorClient
    from feddrm.contract.release import verify_release
    from feddrm.method.card import render_card

    with OperatorClient(operator) as client:
        found = next((r for r in client.releases().releases if r.id == release), None)
        status = client.status()
    if found is None:
        raise InputError(f"There is no release {release}.", remedy="See: release list")
    # The coordinator's word is not taken: signatures are checked against the operator's own roster.
    verified = verify_release(found.statement, plan=found.signed_plan, roster=load_operator_home(operator).roster)
    card = render_card(verified, status.noise if status.plan == found.plan else None)
    emit(form, {"id": verified.id, "card": card}, card.rstrip())


@app.command("publish")
def release_publish(
    release: Annotated[str, typer.Argument(metavar="ID", help="As shown by release list.")],
    operator: OperatorOption,
    form: FormatOption = Format.TEXT,
) -> None:
    """Put a release into service: queriers get its trunk, the router its head."""
    from aggregator.operator_client import OperatorClient

    if not re.fullmatch(r"[0-9a-f]{16}", release):
        raise InputError(f"{release!r} is no release: an id has 16 hexadecimal digits.", remedy="See: release list")
    with OperatorClient(operator) as client:
        done = client.publish_release(release)
    emit(
        form,
        {"id": done.id, "plan": done.plan.hex(), "signatures": done.signatures, "published": done.published},
        f"Release {done.id} is in service, signed by {done.signatures} silos: queriers can ask now.",
    )
