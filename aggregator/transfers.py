"""The coordinator's threads, one that uses the engine and several for files, and the blobs that pass through them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from aggregator.engine import Engine
from aggregator.limits import RateLimit
from feddrm.contract.errors import MalformedError, NotAuthorisedError, UnreachableError
from feddrm.contract.messages import Chunk, UploadReceipt
from feddrm.transport.status import BusyError

T = TypeVar("T")

_FILE_WORKERS: Final = 8
_UPLOADS_AT_ONCE: Final = 4
_CHUNKS_A_CHECK: Final = 16
_CHECK_SECONDS: Final = 5.0
_CHUNK_SECONDS: Final = 60.0


class Transfers:
    """Work on the engine and on files, off the event loop that it is called from."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        # Held by whichever thread uses the engine.
        self._using = threading.Lock()
        # Chunks of several silos are written side by side, and beside what the engine does.
        self._files = ThreadPoolExecutor(max_workers=_FILE_WORKERS, thread_name_prefix="files")
        self._uploading: Counter[str] = Counter()
        self._chunks = RateLimit(rate=500, burst=5000, what="chunks")

    def end_threads(self) -> None:
        """Finish what the threads are doing."""
        self._files.shutdown(wait=True)
        self._worker.shutdown(wait=True)

    async def run(self, work: Callable[[Engine], T]) -> T:
        """Run something on the engine in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._alone, work)

    def _alone(self, work: Callable[[Engine], T]) -> T:
        with self._using:
            return work(self._engine)

    async def file(self, work: Callable[[], T]) -> T:
        """Run something that reads or writes files, but not the engine's state, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._files, work)

    async def upload(self, silo: str, chunks: AsyncIterator[Chunk]) -> UploadReceipt:
        """Take chunks of a masked input; says how much is held, durably.

        Raises:
            NotAuthorisedError: no masked input is expected of this silo now.
            MalformedError: a chunk does not fit.
            UnreachableError: nothing came for too long; what is held stays.
            BusyError: it sends too fast, or over too many streams at once, or the disk is full.
        """
        if self._uploading[silo] >= _UPLOADS_AT_ONCE:
            raise BusyError(f"{silo} uploads over {_UPLOADS_AT_ONCE} streams already.")
        self._uploading[silo] += 1
        try:
            return await self._upload(silo, chunks)
        finally:
            self._uploading[silo] -= 1

    async def _upload(self, silo: str, chunks: AsyncIterator[Chunk]) -> UploadReceipt:
        uploads = self._engine.store.uploads
        last: Chunk | None = None
        size = count = 0
        checked = 0.0
        try:
            while (chunk := await _within(anext(chunks, None), _CHUNK_SECONDS)) is not None:
                self._chunks.charge(silo, 1, time.monotonic())
                if count % _CHUNKS_A_CHECK == 0 or time.monotonic() - checked > _CHECK_SECONDS:
                    size = await self.run(lambda engine: _expected(engine, silo))
                    checked = time.monotonic()
                last, count = chunk, count + 1
                if await self.file(lambda chunk=chunk, size=size: uploads.add(silo, chunk, size)):  # type: ignore[misc]
                    return UploadReceipt(chunk.blob, chunk.size, True)
        finally:
            if last is not None:
                blob = last.blob
                await self.file(lambda: uploads.sync(silo, blob))
        if last is None:
            raise MalformedError("An upload without a chunk.")
        return await self.file(lambda: uploads.held(silo, blob, size))

    async def upload_status(self, silo: str, blob: bytes) -> UploadReceipt:
        """How much of a masked input is held. Errors as `upload`."""
        size = await self.run(lambda engine: _expected(engine, silo))
        return await self.file(lambda: self._engine.store.uploads.held(silo, blob, size))

    async def fetch(self, kind: str, blob: bytes, offset: int) -> AsyncGenerator[Chunk, None]:
        """The chunks of a blob from `offset` on, read one by one as they are sent. Errors as Blobs.chunk."""
        blobs = self._engine.store.blobs
        while (chunk := await self.file(lambda at=offset: blobs.chunk(kind, blob, at))) is not None:  # type: ignore[misc]
            yield chunk
            offset += len(chunk.data)


def _expected(engine: Engine, silo: str) -> int:
    size = engine.coordinator.upload_size(silo)
    if size is None:
        raise NotAuthorisedError(f"No masked input is expected of {silo} now.")
    return size


async def _within(work: Awaitable[T], seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        raise UnreachableError(f"Nothing came for {seconds:.0f} seconds.") from error
