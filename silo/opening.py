"""`feddrm-silo ledger open`: what one commitment of the ledger was made of, for an auditor whom the hospital chose."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from feddrm.contract.errors import InputError, VerificationError
from feddrm.contract.files import private_write
from feddrm.contract.home import load_silo_home
from feddrm.contract.plan import Plan as PlanDocument
from privacy.commitments import Opening, dataset_key, update_key
from privacy.errors import LedgerError
from privacy.leaves import Commit, Dataset, Leaf
from privacy.ledger import Ledger
from silo.books import origin_of
from silo.context import Work, kept_commitment_key
from silo.data import load_records
from silo.home import Home
from silo.state import State


def open_leaf(directory: Path, number: int, out: Path) -> str:
    """Write the opening of leaf `number` into a new file of this user only; works beside a running agent.

    Returns:
        in words, what is opened.

    Raises:
        InputError: no such leaf, none with a commitment, or its data is not here any more.
        VerificationError: the ledger cannot be believed, or the records are not those that were read then.
    """
    home, member = Home(directory), load_silo_home(directory)
    origin = origin_of(member.federation, member.name)
    try:
        ledger = Ledger.read(home.ledger, origin, member.keys.identity_public)
    except LedgerError as error:
        raise VerificationError(f"The ledger cannot be read: {error}.") from error
    if not 0 <= number < ledger.size:
        raise InputError(f"The ledger has no leaf {number}.", remedy="Leaves count from 0: feddrm-audit show EXPORT")
    leaf = ledger.leaf(number)
    state = State.read(home.database)
    try:
        key = kept_commitment_key(state)
        if key is None:
            raise InputError(f"{home.database} holds no commitment key: no commitment of this ledger can be opened.")
        opening = Opening(origin, number, *_parts(home, member.name, state, key, number, leaf))
    finally:
        state.close()
    if not opening.opens(_commitment(leaf)):
        raise VerificationError(
            f"What is here now is not what leaf {number} commits to.",
            remedy="Put the table back that was read then: `records` in local/data.toml.",
        )
    private_write(out, opening.encode())
    return "the records that were read" if isinstance(leaf, Dataset) else "the update of a round"


def _parts(home: Home, me: str, state: State, key: bytes, number: int, leaf: Leaf) -> tuple[bytes, bytes]:
    if isinstance(leaf, Dataset):
        nonce = state.fact(f"dataset {number}")
        job = state.job(leaf.plan)
        if nonce is None or job is None:
            raise InputError(f"{home.database} does not remember how leaf {number} was made.")
        plan: PlanDocument = Work.of(job.signed.body).plan
        return dataset_key(key, nonce), load_records(home, plan.at(me).schema_).digest
    if isinstance(leaf, Commit):
        update = state.update(leaf.plan, leaf.stage, leaf.round)
        if update is None:
            raise InputError(f"The update of leaf {number} was deleted when its round ended, as it must be.")
        digest = sha256(update.astype("<i8").tobytes()).digest()
        return update_key(key, leaf.plan, leaf.stage, leaf.round), digest
    raise InputError(f"Leaf {number} is a {leaf.TYPE} leaf: it holds no commitment.")


def _commitment(leaf: Leaf) -> bytes:
    return leaf.commitment if isinstance(leaf, Dataset) else leaf.update if isinstance(leaf, Commit) else b""
