"""A ledger that is lost: a new one under new keys, charged with everything that anybody can show of the old one.

What is charged is an upper bound. Every plan that the operator signed for this silo, and that its own memory, an old
export or another hospital's export brings, is charged in full, whether or not this silo ever took part: the exact spend
is not known any more, and must not be understated. (Not a plan of another patient column, unless somebody shows it
charged: then it is the silo's column that is wrong.) Peers take the new ledger once their staff has approved the roster
with the new key, and only if it answers for every head that they hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feddrm.contract.charge import charge
from feddrm.contract.errors import InputError
from feddrm.contract.home import SiloHome, load_silo_home
from feddrm.contract.signed import Signed
from feddrm.contract.signed_plan import SignedPlan
from privacy.account import Account
from privacy.errors import LedgerCorrupt, LedgerError
from privacy.events import canonical
from privacy.handover import Carry, Recovered, recovered_from
from privacy.leaves import Dataset, Leaf
from privacy.ledger import Ledger
from privacy.succession import answers_for
from silo.begun import forget_shown, remember
from silo.books import origin_of
from silo.home import DataSettings, Home, exclusive
from silo.remains import Findings, newest, search
from silo.state import State

_CARRIED: Final = "carried plans"
_LOST: Final = "lost"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What the new ledger answers for: (leaves, key) of each lost log, names of carried jobs, epsilon for life."""

    lost: tuple[tuple[int, bytes], ...]
    jobs: tuple[str, ...]
    epsilon: float
    aside: Path | None


def carried_plans(state: State) -> tuple[Signed, ...]:
    """The signed plans of jobs that this ledger carries for a lost one."""
    kept = state.fact(_CARRIED)
    return tuple(Signed.from_json(text) for text in json.loads(kept)) if kept else ()


def recover(directory: Path, files: Sequence[Path], now_ms: int, without: Iterable[str] = ()) -> Recovery:
    """Begin a ledger in the place of a lost one, or let one that did answer for more; safe to run again.

    Args:
        directory: of a silo whose keys are new since the loss.
        files: exports of every hospital of the roster, of this one if there are any, and signed plans.
        without: hospitals whose export cannot be had; the new ledger says so.

    Raises:
        InputError: a hospital's export is missing, nothing shows what was lost, a plan is missing, or the keys are
            still those of the lost ledger.
        VerificationError: the lost ledger had forked.
        AlreadyRunningError: an agent runs here.
    """
    home, member = Home(directory), load_silo_home(directory)
    origin = origin_of(member.federation, member.name)
    with exclusive(home):
        state = State.open(home.database)
        try:
            return _recover(home, member, origin, state, files, now_ms, tuple(sorted(set(without))))
        except LedgerError as error:
            raise InputError(f"The new ledger cannot be written: {error}.") from error
        finally:
            state.close()


def _recover(
    home: Home,
    member: SiloHome,
    origin: str,
    state: State,
    files: Sequence[Path],
    now_ms: int,
    without: tuple[str, ...],
) -> Recovery:
    there = home.ledger.exists()
    sound = there and _sound(home, member, origin)
    # Also what an earlier run put aside and then did not finish with.
    broken = [*sorted((home.state / _LOST).glob("*/ledger.db")), *([home.ledger] if there and not sound else [])]
    found = search(member, origin, files, (*state.plans(), *carried_plans(state)), broken)
    key, aside = member.keys.identity, None
    before = Ledger.read(home.ledger, origin, member.keys.identity_public).leaves() if sound else ()
    leaves = _missing(member, origin, found, [record.leaf for record in before], home.data_settings(), without)
    _demand(member, found, without)
    # First what an export needs, then the leaves that refer to it; done again, nothing is missing.
    state.set_fact(_CARRIED, json.dumps(_plans(state, found)).encode())
    if sound:
        with Ledger.open(home.ledger, origin, key, now_ms=now_ms) as ledger:
            for leaf in leaves:
                ledger.append(leaf, now_ms=now_ms)
    else:
        aside = _set_aside(home) if there else None
        Ledger.begin_again(home.ledger, origin, key, leaves, now_ms=now_ms).close()
    ledger = Ledger.read(home.ledger, origin, member.keys.identity_public)
    job = state.active_job()
    if job is not None and job.plan in _account([record.leaf for record in ledger.leaves()]).carried:
        state.end_job(job.plan, "the ledger was lost")
    forget_shown(state, ledger.size)
    remember(home, state)
    return _said(ledger, aside)


def _sound(home: Home, member: SiloHome, origin: str) -> bool:
    try:
        Ledger.read(home.ledger, origin, member.keys.identity_public)
    except LedgerCorrupt:
        return False
    return True


def _set_aside(home: Home) -> Path:
    """Move a ledger away that is not under the key in use: damaged, an older copy, or of before."""
    folder = home.state / _LOST
    target = folder / str(1 + len(list(folder.glob("*"))))
    target.mkdir(parents=True, mode=0o700)
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        if (home.state / name).exists():
            (home.state / name).rename(target / name)
    return target


def _demand(member: SiloHome, found: Findings, without: tuple[str, ...]) -> None:
    """Whoever withholds an export could make jobs forgotten that nobody else shows: its absence is a decision."""
    peers = {silo.name for silo in member.roster.silos} - {member.name}
    for name in without:
        if name not in peers:
            raise InputError(f"--without {name}: the roster has no such other hospital.")
        if name in found.witnesses:
            raise InputError(f"--without {name}: its export is among the files.", remedy="Leave the option out.")
    missing = sorted(peers - found.witnesses - set(without))
    if missing:
        raise InputError(
            f"The exports of {', '.join(missing)} are missing: they may show jobs that the others do not.",
            remedy="Ask them for feddrm-silo ledger export. If one cannot be had, say --without NAME: the new ledger"
            " records it, for the other hospitals and the auditor to see.",
        )


def _missing(
    member: SiloHome,
    origin: str,
    found: Findings,
    leaves: Sequence[Leaf],
    data: DataSettings,
    without: tuple[str, ...],
) -> tuple[Recovered | Carry, ...]:
    account = _account(leaves)
    heads = newest(found)
    if not heads and not any(isinstance(leaf, Recovered) for leaf in leaves):
        raise InputError(
            f"Nothing here shows a head of a lost ledger of {member.name} under an earlier key.",
            remedy="Take new keys first (feddrm-silo keys new), and give the other hospitals' exports; ask the operator"
            " for them. If no hospital ever saw the ledger, nothing was released: join anew with a fresh directory.",
        )
    unknown = [who for plan, who in found.charged.items() if plan not in found.plans and plan not in account.jobs]
    if unknown:
        raise InputError(
            f"{unknown[0].capitalize()} shows a job whose signed plan none of the files brings.",
            remedy="Ask the operator for the signed plans of all jobs, and give them too.",
        )
    added: list[Recovered | Carry] = [
        recovered_from(head, key, without) for head, key in heads if not answers_for(leaves, origin, key, head)
    ]
    _check_fixed(member, found, leaves, data)
    # Those last that peers can have seen, since a round's proof shows the last ones.
    for plan, signed in sorted(found.plans.items(), key=lambda entry: entry[0] in found.began):
        if plan in account.jobs or plan in account.carried:
            continue
        # Only a plan that nobody shows charged can be of another column here, and this silo takes none of another.
        if signed.plan.schema_.patient == data.patient:
            added.append(_carry(signed, data.public_size))
    return tuple(added)


def _check_fixed(member: SiloHome, found: Findings, leaves: Sequence[Leaf], data: DataSettings) -> None:
    """Hold local/data.toml against what is fixed for life.

    Leaves fix it, and so do signed plans that somebody shows charged. Any other plan is the operator's word alone: this
    silo may have declined it for the very column or size that it gives.
    """
    charged = [signed for plan, signed in found.plans.items() if plan in found.charged]
    fixed = [leaf for leaf in leaves if isinstance(leaf, Dataset | Carry)]
    columns = found.columns | {leaf.patient for leaf in fixed} | {signed.plan.schema_.patient for signed in charged}
    strange = sorted(columns - {data.patient})
    if strange:
        raise InputError(
            f"local/data.toml says that a patient is what the column {data.patient} says; in the lost ledger it was"
            f" {strange[0]}.",
            remedy=f'Set patient = "{strange[0]}" again: the unit of privacy is fixed for life.',
        )
    sizes = found.sizes | {leaf.public_size for leaf in fixed}
    # A CARRY names a plan that may have been declined, but at the size that was fixed; so it says what its plan does
    # not. Where no leaf says it, a plan that this silo took does: it takes none that gives another size than its own.
    if not sizes:
        began = [signed.plan.routing_fit for signed in charged if signed.hash in found.began]
        sizes = {fit.public_sizes[member.name] for fit in began if fit is not None}
    other = sorted(sizes - {data.public_size})
    if other:
        raise InputError(
            f"local/data.toml gives {data.public_size} as the public size; in the lost ledger it was {other[0]}.",
            remedy=f"Set public_size = {other[0]} again: it is fixed for life.",
        )


def _carry(signed: SignedPlan, public_size: int) -> Carry:
    cost = charge(signed.plan)
    return Carry(
        plan=signed.hash,
        name=signed.plan.name,
        delta=cost.delta,
        epsilon=cost.epsilon,
        epsilon_alone=cost.epsilon_alone,
        events=canonical(cost.events),
        patient=signed.plan.schema_.patient,
        public_size=public_size,
    )


def _plans(state: State, found: Findings) -> list[str]:
    known = [signed.to_json() for signed in carried_plans(state)]
    return list(dict.fromkeys([*known, *(signed.signed.to_json() for signed in found.plans.values())]))


def _said(ledger: Ledger, aside: Path | None) -> Recovery:
    leaves = [record.leaf for record in ledger.leaves()]
    account = _account(leaves)
    return Recovery(
        tuple((leaf.size, leaf.key) for leaf in leaves if isinstance(leaf, Recovered)),
        tuple(leaf.name for leaf in account.carried.values()),
        account.life().epsilon,
        aside,
    )


def _account(leaves: Iterable[Leaf]) -> Account:
    account = Account()
    for number, leaf in enumerate(leaves):
        account.apply(number, leaf)
    return account
