"""Runs one feddrm command so that it cannot outlive the demo that started it.

`python -P -m feddrm.demo.child FD MODULE ARG...`: the demo keeps the write end of a pipe and hands the read end FD
down. The pipe's end-of-file, which the kernel delivers however the demo died, ends this process. The commands
themselves know nothing of it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

GRACE_SECONDS = 5.0


def follow(descriptor: int) -> None:
    """End this process soon after the pipe `descriptor` reaches end-of-file: SIGTERM first, then by force."""

    def watch() -> None:
        try:
            while os.read(descriptor, 1):
                pass
        except OSError:
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        # A handler that waits for a training step must not keep us alive.
        threading.Event().wait(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def main() -> None:
    """Follow the lifeline, then become the command."""
    follow(int(sys.argv[1]))
    module, arguments = sys.argv[2], sys.argv[3:]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
