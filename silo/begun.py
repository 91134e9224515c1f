"""A ledger that was begun here is here for good: what else in the directory remembers it (design 7).

A ledger that is wiped together with its lock file would begin anew with nothing spent. Peers that witnessed its heads
find that out in the next round; this silo finds it out by itself, before it says anything to anybody.
"""

from __future__ import annotations

from typing import Final

from feddrm.contract.errors import VerificationError
from feddrm.contract.files import atomic_write
from privacy.ledger import Ledger
from silo.database import LEDGER_REMEDY
from silo.home import Home
from silo.state import State
from silo.witnessing import SHOWN, shown_sizes

_BEGUN: Final = "ledger begun"
_NOTE: Final = (
    "A privacy ledger was begun in this directory; it is state/ledger.db. Do not delete either: the agent does not\n"
    "start with a new ledger in the place of one that knows what was spent.\n"
)


def refuse_vanished(home: Home, state: State | None) -> None:
    """Refuse to go on where the ledger is gone that there has been.

    Args:
        state: agent.db, if there is one.

    Raises:
        VerificationError: agent.db, or the note in startup/, remembers a ledger that is not there.
    """
    if home.ledger.exists():
        return
    witness = ""
    if home.ledger_note.exists():
        witness = str(home.ledger_note)
    elif state is not None and (state.fact(_BEGUN) or shown_sizes(state) or state.last_job() is not None):
        witness = str(home.database)
    if witness:
        raise VerificationError(
            f"The ledger {home.ledger} is gone: {witness} remembers one. A new one in its place would forget what was"
            " spent.",
            remedy=LEDGER_REMEDY,
        )


def refuse_older(ledger: Ledger, state: State) -> None:
    """Refuse an older copy of the ledger than the one whose heads this silo showed to its peers.

    Raises:
        VerificationError: it lacks leaves that peers have witnessed.
    """
    newest = max(shown_sizes(state), default=0)
    if newest > ledger.size:
        raise VerificationError(
            f"The ledger {ledger.path} holds {ledger.size} leaves, but {newest} were shown to the peers: it is an older"
            " copy.",
            remedy=LEDGER_REMEDY,
        )


def forget_shown(state: State, size: int) -> None:
    """A new ledger stands in the place of the one that was shown to peers; so far it has `size` leaves and was not."""
    if max(shown_sizes(state), default=0) > size:
        state.set_fact(SHOWN, b"")


def remember(home: Home, state: State) -> None:
    """Write down, in two places, that the ledger exists."""
    if state.fact(_BEGUN) is None:
        state.set_fact(_BEGUN, b"1")
    if not home.ledger_note.exists():
        atomic_write(home.ledger_note, _NOTE.encode(), mode=0o600)
