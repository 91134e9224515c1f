"""A process that must not outlive the one that started it.

The parent keeps the write end of a pipe and hands the read end down; the pipe's end-of-file, which the kernel
delivers however the parent died, ends the child. Nothing is ever written to the pipe.
"""

from __future__ import annotations

import os
import signal
import threading

GRACE_SECONDS = 5.0


def follow(descriptor: int) -> None:
    """End this process soon after the pipe `descriptor` reaches end-of-file: SIGTERM first, then by force.

    Args:
        descriptor: read end of a pipe, inherited from the parent.
    """

    def watch() -> None:
        try:
            while os.read(descriptor, 1):
                pass
        except OSError:
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        # A handler that waits for a training step, or a shell that swallowed the signal, must not keep us alive.
        threading.Event().wait(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
