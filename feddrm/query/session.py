"""What `route` and `ask` do before the first query: check the own directory, greet, verify the release."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from feddrm.cli import now_ms, printable
from feddrm.contract.errors import VerificationError, in_shell
from feddrm.contract.home import MemberHome, load_query_home
from feddrm.contract.messages import Hello
from feddrm.contract.pin import Offer
from feddrm.query.coordinator import Coordinator, Patience, connected
from feddrm.query.model import QuerierModel, current_model

_CLOCKS_APART_MS: Final = 300_000


@asynccontextmanager
async def session(directory: Path, patience: Patience) -> AsyncIterator[tuple[Coordinator, MemberHome, QuerierModel]]:
    """A connection with a verified release.

    Raises:
        FeddrmError: see load_query_home, MemberHome.check_current and current_model.
    """
    home = load_query_home(directory)
    home.check_current(now_ms())
    async with connected(home, patience) as coordinator:
        greet(home, await coordinator.hello(), now_ms())
        yield coordinator, home, await current_model(coordinator, home)


def greet(home: MemberHome, hello: Hello, at_ms: int) -> None:
    """Take note of what the coordinator says: a newer roster waits for a person's approval, never applies by itself.

    Raises:
        VerificationError: another federation's, or a roster that is forged or goes back.
    """
    if hello.federation != home.federation:
        raise VerificationError(f"The coordinator at {home.address} serves federation {hello.federation}.")
    if home.pin.offer(hello.roster, at_ms) is Offer.PENDING:
        show = f"feddrm-query roster show --dir {in_shell(home.directory)}"
        note(f"A newer roster waits for your approval: {show}, then roster accept.")
    apart = abs(hello.time_ms - at_ms)
    if apart > _CLOCKS_APART_MS:
        note(f"This machine's clock and the coordinator's are {apart // 60_000} minutes apart.")


def note(text: str) -> None:
    """Tell the person something beside the result."""
    print(printable(text), file=sys.stderr, flush=True)
