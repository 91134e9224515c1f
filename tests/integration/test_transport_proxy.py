"""Which way a member dials: past a proxy on this machine, through the hospital's to others."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import pytest
from transport_world import RETINA, SILO, hello, start

from feddrm.contract.authority import Address
from feddrm.contract.errors import (
    UnreachableError,
)
from feddrm.contract.identity import Role
from feddrm.transport.client import make_sync_channel


def test_loopback_ignores_a_proxy(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert hello(make_sync_channel(address, SILO), address).software == "hospital-a"


class Proxy(threading.Thread):
    """An HTTP proxy that resolves every name to the coordinator, as a hospital's proxy would resolve it."""

    def __init__(self, target: Address) -> None:
        super().__init__(daemon=True)
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.requests: list[bytes] = []

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.requests.append(client.recv(4096).split(b"\r\n")[0])
            upstream = socket.create_connection((self._target.host, self._target.port))
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for source, sink in ((client, upstream), (upstream, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY"])
def test_a_hospitals_proxy_is_used_however_it_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    named = Address("agg.example.org", 8002)
    process = start(tmp_path, RETINA.member(Role.COORDINATOR, "coordinator", address=named))
    assert process.stdout is not None
    proxy = Proxy(Address("127.0.0.1", int(process.stdout.readline())))
    proxy.start()
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "grpc_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
    try:
        assert hello(make_sync_channel(named, SILO), named).software == "hospital-a"
        assert proxy.requests == [b"CONNECT agg.example.org:8002 HTTP/1.1"]
        monkeypatch.setenv(variable.swapcase().replace("https", "no").replace("HTTPS", "NO"), ".example.org")
        with pytest.raises(UnreachableError):
            hello(make_sync_channel(named, SILO), named)
        assert len(proxy.requests) == 1
    finally:
        proxy.close()
        process.terminate()
        process.communicate(timeout=60)
