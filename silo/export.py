"""`feddrm-silo ledger export`: what an auditor gets. No private key, no record, no model goes with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from feddrm.contract import labels
from feddrm.contract.errors import InputError, VerificationError
from feddrm.contract.files import atomic_write, make_directory
from feddrm.contract.home import load_silo_home
from feddrm.contract.signed import Signed, signers
from privacy.bundle import export_bundle
from privacy.errors import LedgerCorrupt, LedgerError
from privacy.ledger import Ledger
from silo.accusations import cases
from silo.books import origin_of
from silo.database import LEDGER_REMEDY
from silo.home import Home
from silo.peers import Heads
from silo.recovery import carried_plans
from silo.state import State


def export_ledger(directory: Path, out: Path) -> int:
    """Write the bundle of a silo's ledger; works beside a running agent.

    Returns:
        how many leaves it holds.

    Raises:
        InputError: there is no ledger yet, or the file cannot be written.
        VerificationError: the ledger does not match its own signed head.
    """
    home = Home(directory)
    member = load_silo_home(directory)
    # Heads and plans first: a ledger read later holds all that they belong to.
    state = State.read(home.database)
    try:
        peers = Heads(state)
        heads = {origin_of(member.federation, name): note for name, (_, note) in peers.heads().items()}
        sightings = peers.sightings()
        plans = [*state.plans(), *carried_plans(state)]
    finally:
        state.close()
    try:
        ledger = Ledger.read(home.ledger, origin_of(member.federation, member.name), member.keys.identity_public)
    except LedgerCorrupt as error:
        raise VerificationError(f"The ledger was changed or damaged: {error}.", remedy=LEDGER_REMEDY) from error
    except LedgerError as error:
        raise InputError(f"The ledger cannot be read: {error}.") from error
    operator = member.anchor.operator
    bundle = export_bundle(
        ledger,
        witnessed=heads,
        sightings=sightings,
        roster=_texts([member.signed_roster], labels.ROSTER, operator)[0],
        rosters=_texts(member.pin.history(), labels.ROSTER, operator, besides=member.signed_roster),
        plans=_texts(plans, labels.PLAN, operator),
    )
    atomic_write(out, bundle.encode())
    return ledger.size


def export_evidence(directory: Path, folder: Path) -> tuple[Path, ...]:
    """Write what this silo holds against others, a file each; works beside a running agent.

    Returns:
        the files, oldest evidence first.

    Raises:
        InputError: a file cannot be written.
    """
    home = Home(directory)
    home.check()
    state = State.read(home.database)
    try:
        found = cases(state)
    finally:
        state.close()
    make_directory(folder)
    paths = []
    for number, (plan, round_number, case) in enumerate(found, start=1):
        path = folder / f"evidence-{number}-{plan.hex()[:8]}-round-{round_number}.json"
        atomic_write(path, case.to_json().encode())
        paths.append(path)
    return tuple(paths)


def _texts(documents: Iterable[Signed], label: bytes, operator: bytes, besides: Signed | None = None) -> list[str]:
    """Documents once each, with the operator's signature alone: what a coordinator wrote beside it would be laid to
    this silo."""
    alone: dict[bytes, str] = {}
    for signed in documents:
        own = [s for s in signed.signatures if s.key == operator and signers(Signed(signed.body, (s,)), label)]
        if besides is None or signed.body != besides.body:
            alone.setdefault(signed.body, Signed(signed.body, tuple(own[:1])).to_json())
    return list(alone.values())
