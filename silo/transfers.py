"""Masked inputs and published sums that are too large for the control stream, on their way beside it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from feddrm.contract.errors import FeddrmError, UnreachableError
from feddrm.contract.messages import SMALL_VECTOR
from silo.effects import Event, Fetched, FetchSum, Upload, Uploaded
from silo.link import Backoff, Link

logger = logging.getLogger("silo")


class Transfers:
    """At most one upload, the newest, and one download of each sum.

    Args:
        start: runs a coroutine beside the others.
        handle: takes what has happened.
    """

    def __init__(
        self,
        link: Link,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        handle: Callable[[Event], None],
    ) -> None:
        self._link = link
        self._start = start
        self._handle = handle
        self._upload: tuple[bytes, asyncio.Task[None]] | None = None
        self._fetching: set[bytes] = set()

    def upload(self, effect: Upload) -> None:
        """Bring a masked input to the coordinator, unless it is on its way or small enough to travel with its frame."""
        if self._upload is not None:
            blob, task = self._upload
            if blob == effect.blob and not task.done():
                return
            task.cancel()
        if len(effect.data) <= SMALL_VECTOR:
            self._handle(Uploaded(effect.blob))
            return
        self._upload = (effect.blob, self._start(self._send_up(effect)))

    def fetch(self, effect: FetchSum) -> None:
        """Bring a published sum here, unless it is on its way."""
        if effect.blob not in self._fetching:
            self._fetching.add(effect.blob)
            self._start(self._fetch(effect))

    async def _send_up(self, effect: Upload) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._link.upload(effect.blob, effect.data)
            except UnreachableError as error:
                logger.info("The upload was interrupted (%s); it resumes.", error.message)
                await asyncio.sleep(backoff.next())
            except FeddrmError as error:
                # The session is over there; the coordinator asks again if it is not.
                logger.warning("The upload is not wanted: %s", error)
                return
            else:
                self._handle(Uploaded(effect.blob))
                return

    async def _fetch(self, effect: FetchSum) -> None:
        try:
            data = await self._link.fetch(effect.blob, effect.size)
        except FeddrmError as error:
            # The coordinator sends outcome or sum again after the next Ready.
            logger.warning("A published sum could not be fetched: %s", error)
            return
        finally:
            self._fetching.discard(effect.blob)
        self._handle(Fetched(effect.blob, data))
