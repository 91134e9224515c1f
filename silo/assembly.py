"""Puts an agent together from a silo's directory."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from feddrm.contract.errors import AlreadyRunningError, FeddrmError, InputError, VerificationError
from feddrm.contract.files import load_document
from feddrm.contract.home import SiloHome, load_silo_home
from feddrm.contract.names import SiloId
from feddrm.contract.policy import POLICY_FILE, Policy
from privacy.commitments import commit_dataset
from privacy.errors import LedgerCorrupt, LedgerError, LedgerLocked
from privacy.gate import Gate
from privacy.ledger import Ledger
from silo.agent import Agent, Demo, now_ms
from silo.answers import Answers
from silo.begun import refuse_older, refuse_vanished, remember
from silo.books import caps_of, origin_of
from silo.context import Context, commitment_key, held_out_key
from silo.database import LEDGER_REMEDY, WRITE_REMEDY
from silo.home import AgentSettings, Home, exclusive
from silo.inference import Answerer
from silo.permission import unserved
from silo.relay import Relay, Released
from silo.renewal import Pinned, Renewal
from silo.report import started
from silo.state import State
from silo.worker import Worker
from silo.workshop import Workshop


async def serve(
    directory: Path, demo: Demo, make_worker: Callable[[Home, Context, AgentSettings], Worker] | None = None
) -> None:
    """Run the agent of a directory until it is told to stop.

    Args:
        make_worker: makes what reads and trains; a Workshop if left out.

    Raises:
        AlreadyRunningError: another agent holds the directory.
        FeddrmError: a file is missing, malformed, expired or does not verify.
    """
    home = Home(directory)
    member = load_silo_home(directory)
    member.check_current(now_ms())
    settings = home.settings()
    read_policy(home)
    # SQLite and everything else that writes here makes files that only this user reads.
    os.umask(0o077)
    with exclusive(home), _writable(home):
        state = State.open(home.database)
        ledger = open_ledger(home, member, state)
        try:
            started(home, member, state)
            renewal = Renewal(home, member, state, now_ms)
            context = _context(home, member, renewal.take(), settings, state, ledger)
            worker = (make_worker or _workshop)(home, context, settings)
            agent = Agent(member, context, renewal, worker, _relay(member, context, settings), demo)
            await _run(agent)
        finally:
            ledger.close()
            state.close()


@contextlib.contextmanager
def _writable(home: Home) -> Iterator[None]:
    """Nothing was sent that rests on what could not be written, also where that shows before the agent runs."""
    try:
        yield
    except (LedgerError, sqlite3.Error) as error:
        raise InputError(
            f"The agent stopped because {home.state} cannot be written: {error}.", remedy=WRITE_REMEDY
        ) from error


async def _run(agent: Agent) -> None:
    try:
        await agent.run()
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group


def read_policy(home: Home) -> Policy:
    """What the hospital allows now.

    Raises:
        InputError: missing or malformed; nothing is allowed then.
    """
    return load_document(home.local / POLICY_FILE, Policy)


def _context(
    home: Home, member: SiloHome, pinned: Pinned, settings: AgentSettings, state: State, ledger: Ledger
) -> Context:
    return Context(
        federation=member.federation,
        me=SiloId(member.name),
        signer=member.keys.identity,
        roster=pinned.roster,
        signed_roster=pinned.signed,
        read_policy=lambda: read_policy(home),
        read_data=home.data_settings,
        state=state,
        ledger=ledger,
        gate=Gate(ledger, caps_of(read_policy(home))),
        boot=os.urandom(16),
        entropy=os.urandom,
        slot_ms=round(settings.slot_seconds * 1000),
    )


def _workshop(home: Home, context: Context, settings: AgentSettings) -> Workshop:
    # The keys are read here: the worker thread must not touch the database.
    key = commitment_key(context.state, context.entropy)
    return Workshop(
        home,
        context.me,
        settings.torch_threads,
        os.urandom,
        lambda digest, nonce: commit_dataset(key, digest, nonce),
        held_out_key(context.state, context.entropy),
    )


def _relay(member: SiloHome, context: Context, settings: AgentSettings) -> Relay | None:
    if settings.capacity == 0:
        return None
    released = Released(context.state, settings.torch_threads, context.me)

    def problem(release: bytes | None) -> str:
        return unserved(context.read_policy, None if release is None else released.plan(release))

    def width(release: bytes) -> int | None:
        plan = released.plan(release)
        return None if plan is None or problem(release) else plan.width

    answerer = Answerer(
        answers=Answers(context.state),
        roster=member.roster,
        me=context.me,
        signer=context.signer,
        sealing=member.keys.sealing.hpke(),
        width_of=width,
        answers_per_day=settings.answers_per_day,
        capacity=settings.capacity,
    )
    return Relay(answerer, released, settings.capacity, lambda: problem(released.newest))


def open_ledger(home: Home, member: SiloHome, state: State) -> Ledger:
    """The silo's ledger, for writing; begun if there has been none.

    Raises:
        AlreadyRunningError: another process writes it.
        VerificationError: it does not match its own signed head, is gone, or is older than what was shown to peers.
        InputError: it cannot be opened.
    """
    refuse_vanished(home, state)
    try:
        ledger = Ledger.open(
            home.ledger, origin_of(member.federation, member.name), member.keys.identity, now_ms=now_ms()
        )
    except LedgerLocked as error:
        raise AlreadyRunningError(f"Another process writes {home.ledger}.", remedy="Stop it first.") from error
    except LedgerCorrupt as error:
        raise VerificationError(f"The ledger was changed or damaged: {error}.", remedy=LEDGER_REMEDY) from error
    except LedgerError as error:
        raise InputError(f"The ledger cannot be used: {error}.") from error
    try:
        refuse_older(ledger, state)
        remember(home, state)
    except FeddrmError:
        ledger.close()
        raise
    return ledger
