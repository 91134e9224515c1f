"""The demo's result as a table that a person understands."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from feddrm.contract.errors import in_shell


def render(result: dict[str, Any], console: Console) -> None:
    """Print the result of one demo run (the object that --format json prints)."""
    console.print(Group(_privacy(result), _quality(result)))
    # Paths and commands are there to be copied: never broken by the terminal's width.
    console.print(_checks(result), soft_wrap=True)
    console.print(_next(result), soft_wrap=True)


def _privacy(result: dict[str, Any]) -> Table:
    table = Table(title="What each hospital's patients paid, and its proof", title_justify="left")
    for name, justify in (("hospital", "left"), ("epsilon spent / cap", "right"), ("rounds joined", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("ledger, checked by the auditor")
    for silo in result["silos"]:
        table.add_row(
            silo["name"],
            f"{silo['epsilon_spent']:.3f} / {silo['epsilon_cap']:.2f}",
            f"{silo['rounds_joined']} of {result['rounds']}",
            "verified" if silo["ledger_verified"] else "[bold red]NOT VERIFIED[/]",
        )
    table.caption = (
        f"Epsilon bounds what anybody can learn about one patient (delta {result['delta']:g}); smaller is stricter. "
        f"The plan charges {result['plan_epsilon']:.3f}, with a spare round for an evaluation that is lost."
    )
    table.caption_justify = "left"
    return table


def _quality(result: dict[str, Any]) -> Table:
    table = Table(title=f"\nHow well {result['queries']} held-out records were served", title_justify="left")
    table.add_column("question")
    table.add_column("share", justify="right")
    table.add_column("compare with")
    rows = (
        (
            "Did the router name the hospital that the patient came from?",
            "routing_accuracy",
            f"chance {_percent(result['chance_routing'])}, "
            f"always the largest site {_percent(result['largest_site_routing'])}",
        ),
        (
            "Was the answer of the hospital that it was routed to right?",
            "system_accuracy",
            f"a random hospital {_percent(result['random_silo_accuracy'])}, "
            f"the patient's own {_percent(result['own_silo_accuracy'])}, "
            f"each site's commonest answer {_percent(result['majority_accuracy'])}",
        ),
    )
    for question, key, comparison in rows:
        table.add_row(question, f"[bold]{_percent(result[key])}[/]", comparison)
    asked = result["silos_asked"]
    shown = f"{asked:.2f} hospitals: to two where they are nearly tied, to one elsewhere"
    table.caption = f"A query was shown to {'one hospital' if asked == 1 else shown}."
    table.caption_justify = "left"
    return table


def _checks(result: dict[str, Any]) -> Text:
    sums = f"{result['sums_checked']} published sums equal the sum of the updates behind them"
    transport = result["transport"]
    client = "both sides show certificates" if transport["client_auth"] else "clients show NO certificate"
    lines = [
        f"\nSecure aggregation: {sums}." if result["sums_verified"] else "\nSecure aggregation: SUMS DO NOT MATCH.",
        f"Transport: {transport['version']}, {client}.",
    ]
    lines += [
        f"Secure evaluation, {name}: {_percent(figure['value'])}, privacy noise {_percent(figure['deviation'])}."
        for name, figure in result["evaluation"].items()
    ]
    lines += [
        f"Round {entry['round']} ({entry['stage']}): {', '.join(entry['mask_keys_opened'])} dropped out; its mask key "
        "was opened by shares, its own update stayed secret."
        for entry in result["history"]
        if entry["mask_keys_opened"]
    ]
    lines += [f"Lost rounds: {', '.join(map(str, lost))}." for lost in [result["rounds_lost"]] if lost]
    return Text("\n".join(lines))


def _next(result: dict[str, Any]) -> Text:
    directory, silo = result["directory"], f"/{result['silos'][0]['name']}"
    ledger = f"/audit{silo}.ledger"
    return Text(
        f"\nEverything stays in {directory}: hospitals' directories, logs/, audit/ (ledgers, federation's root).\n"
        f"Next: feddrm-audit show {in_shell(directory + ledger)}"
        f"\n      feddrm-silo status {in_shell(directory + silo)}"
        "\n      feddrm demo --kill-silo site-3@4    (a hospital dies in the middle of a round)"
        f"\nThe audit, as a page for a hospital's board (open it in a browser): {result['report']}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
