"""All cells of a comparison, one process a core.

Processes are spawned, never forked, each with one thread of torch. They end with the process that started them, and
whatever is killed when, the next run goes on where the states lie.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import torch

from feddrm.compare import cells
from feddrm.compare.settings import Settings
from feddrm.compare.store import Store
from feddrm.contract.errors import InputError

Advance = Callable[[int], None]
_Work = TypeVar("_Work")

_LOOK_SECONDS: Final = 0.5


def rounds(settings: Settings) -> int:
    """How many steps of progress a comparison has."""
    return sum(settings.train.rounds for _ in cells.jobs(settings))


def run(settings: Settings, folder: Path, store: Store, processes: int, advance: Advance) -> None:
    """Run what is missing of a comparison's cells.

    Args:
        settings: of the comparison.
        folder: of the public data sets.
        store: of the comparison.
        processes: at most so many.
        advance: called with numbers of rounds done.

    Raises:
        InputError: the data cannot be read, no noise keeps within an epsilon, or a process was killed.
    """
    each(list(cells.jobs(settings)), cells.run, settings, folder, store, processes, advance)


def each(
    todo: Sequence[_Work],
    work: Callable[[_Work, Settings, Path, Store, Advance], None],
    settings: Settings,
    folder: Path,
    store: Store,
    processes: int,
    advance: Advance,
) -> None:
    """Do all of some work of a comparison; `work` is a module's own function, that a process can find by its name.

    Raises:
        InputError: as in `run`.
    """
    processes = min(processes, len(todo))
    if processes <= 1:
        torch.set_num_threads(1)
        for one in todo:
            work(one, settings, folder, store, advance)
        return
    context = multiprocessing.get_context("spawn")
    done: Any = context.Queue()
    arguments = (os.getpid(), done, store.folder, settings.model_dump_json(by_alias=True), folder)
    try:
        with _sigterm_ends():
            _share([(work, one) for one in todo], processes, context, arguments, lambda: _drain(done, advance))
    except BrokenProcessPool as error:
        raise InputError(
            "A process of the comparison was killed.",
            remedy="Run the same command again: it goes on where it stood. If memory is short, use --processes 1.",
        ) from error
    _drain(done, advance)


def _share(
    todo: Sequence[tuple[Any, Any]], processes: int, context: Any, arguments: tuple[Any, ...], look: Callable[[], None]
) -> None:
    with ProcessPoolExecutor(processes, context, _begin, arguments) as pool:
        try:
            with _put_off():
                futures: set[Future[None]] = {pool.submit(_work, work, one) for work, one in todo}
            while futures:
                finished, futures = wait(futures, _LOOK_SECONDS, FIRST_EXCEPTION)
                look()
                for future in finished:
                    future.result()
        except BaseException:
            # Whatever it is, Ctrl-C or one cell's bad data, the others' states lie on the disk: nobody waits for them.
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


@contextlib.contextmanager
def _sigterm_ends() -> Iterator[None]:
    """As Ctrl-C does: the other processes first, and the queue's semaphores."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _put_off() -> Iterator[None]:
    """Begin processes whole: one that is left when it is half begun prints a traceback.

    Ctrl-C reaches the whole group, and this process says so and ends the others: for them it stays blocked, from their
    first instruction on. SIGTERM, by which they are ended, must not.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handler = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGTERM, handler)
    if came:
        os.kill(os.getpid(), signal.SIGTERM)


def _end(number: int, _: object) -> NoReturn:
    print("Interrupted.", file=sys.stderr)
    raise SystemExit(128 + number)


def _drain(done: Any, advance: Advance) -> None:
    while True:
        try:
            advance(done.get_nowait())
        except queue.Empty:
            return


_settings: Settings
_folder: Path
_store: Store
_done: Any


def _begin(parent: int, done: Any, store: Path, settings: str, folder: Path) -> None:
    global _settings, _folder, _store, _done
    torch.set_num_threads(1)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    _settings = Settings.model_validate_json(settings)
    _folder, _store, _done = folder, Store(store, _settings), done


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _work(work: Any, one: Any) -> None:
    work(one, _settings, _folder, _store, _done.put)
