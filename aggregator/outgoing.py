"""What leaves the coordinator for silos: messages encoded once, in the engine's thread, and a queue for each stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final

from aggregator.engine import Engine
from aggregator.events import Send
from feddrm.contract import codec
from feddrm.contract.errors import UnreachableError
from feddrm.contract.messages import CoordinatorEvent, Publish, StepFrames

log = logging.getLogger(__name__)

_QUEUE: Final = 1000


class Stream:
    """What is on its way to one silo, as protobuf messages. `failure` ends the stream with an error, None without."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._failure: BaseException | None = None

    def put(self, message: Any) -> None:
        """Queue a message (None ends the stream). A silo that does not read is cut off, and gets everything again when
        it comes back."""
        if self._queue.qsize() >= _QUEUE:
            self.close(UnreachableError("The silo does not read its control stream."))
        else:
            self._queue.put_nowait(message)

    def close(self, failure: BaseException | None = None) -> None:
        """End the stream after what is queued already."""
        self._failure = self._failure or failure
        self._queue.put_nowait(None)

    async def messages(self) -> AsyncGenerator[Any, None]:
        """What to send, until the stream is closed."""
        while (message := await self._queue.get()) is not None:
            yield message
        if self._failure is not None:
            raise self._failure


@dataclass(frozen=True, slots=True)
class Acted:
    """What acting on events led to: messages for silos in order, and how long until the next deadline (or None)."""

    messages: tuple[tuple[str, Any], ...]
    wait_ms: int | None


def act(engine: Engine, sends: tuple[Send, ...]) -> Acted:
    """Encode in the engine's thread; frames that many silos get are encoded once."""
    encoded: dict[int, Any] = {}
    messages = []
    for send in sends:
        key = _identity(send.event)
        if key not in encoded:
            try:
                encoded[key] = codec.COORDINATOR_EVENT.to_wire(send.event)
            except ValueError:
                # A bug of ours: that silo's stream ends, and nobody else's.
                log.exception("A message for %s cannot be encoded", send.silo)
                encoded[key] = None
        messages.append((send.silo, encoded[key]))
    return Acted(tuple(messages), engine.wait_ms())


def _identity(event: CoordinatorEvent) -> int:
    # All steps but R2 send the very same frames to everybody, and there is one sum.
    match event:
        case StepFrames(frames=frames):
            return id(frames)
        case Publish(frame=frame):
            return id(frame)
        case _:
            return id(event)
