"""A page in a real headless Chromium, over the DevTools protocol and its pipe: messages end with a zero byte."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SECONDS = 60.0
# The browser reads commands from descriptor 3 and writes to 4.
_LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


@dataclass
class Browser:
    """One page. `requests` are all addresses that it asked for, `complaints` what the console and the log said."""

    process: subprocess.Popen[bytes]
    into: int
    out: int
    session: str = ""
    number: int = 0
    buffer: bytes = b""
    loaded: int = 0
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.into, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path) -> None:
        self.requests.clear()
        self.complaints.clear()
        before = self.loaded
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.loaded == before:
            self._next()

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"])

    def _next(self) -> dict[str, Any]:
        limit = time.monotonic() + SECONDS
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.out], [], [], max(0.0, limit - time.monotonic()))
            assert ready, "the browser says nothing"
            data = os.read(self.out, 1 << 20)
            assert data, f"the browser ended with {self.process.wait()}"
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self.loaded += 1
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """A browser with one empty page; `directory` takes its profile."""
    assert CHROMIUM is not None
    ends = (*os.pipe(), *os.pipe())
    # Away from 3 and 4, which the launcher overwrites.
    commands, into, out, events = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 100) for end in ends)
    for end in ends:
        os.close(end)
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", _LAUNCH, str(commands), str(events), CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
            f"--user-data-dir={directory}",
        ],
        pass_fds=(commands, events),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands)
    os.close(events)
    page = Browser(process, into, out)
    try:
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        yield page
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(into)
        os.close(out)
