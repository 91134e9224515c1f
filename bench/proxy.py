"""A TCP proxy between silos and the coordinator that counts what passes and cuts connections when asked to."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from feddrm.contract.authority import Address

_PIECE: Final = 256 << 10


@dataclass
class Pair:
    """One connection through the proxy; `up` counts payload bytes from the silo, `down` those to it."""

    client: socket.socket
    server: socket.socket
    up: int = 0
    down: int = 0

    def cut(self) -> None:
        """Break both halves at once, as a dying router would; what is under way is lost."""
        for end in (self.client, self.server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


@dataclass
class Cut:
    """Break the connection on which `direction` ("up" or "down") has carried `after` bytes more than `since`."""

    direction: str
    after: int
    done: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Listens on `listen` and forwards to `target`, both on this machine. A context manager."""

    def __init__(self, listen: Address, target: Address) -> None:
        self._target = target
        self._server = socket.create_server((listen.host, listen.port))
        self.pairs: list[Pair] = []
        self._cuts: list[tuple[Cut, dict[int, int]]] = []
        self._guard = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()

    @property
    def up(self) -> int:
        """Bytes from silos so far, over all connections."""
        return sum(pair.up for pair in list(self.pairs))

    @property
    def down(self) -> int:
        """Bytes to silos so far, over all connections."""
        return sum(pair.down for pair in list(self.pairs))

    def cut(self) -> None:
        """Break all connections that there are now."""
        for pair in list(self.pairs):
            pair.cut()

    def cut_after(self, direction: str, count: int) -> Cut:
        """Break, once, the first connection that carries `count` more bytes in one direction from now on."""
        order = Cut(direction, count)
        with self._guard:
            self._cuts.append((order, {id(pair): getattr(pair, direction) for pair in self.pairs}))
        return order

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((self._target.host, self._target.port))
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = Pair(client, server)
            self.pairs.append(pair)
            for direction, source, sink in (("up", client, server), ("down", server, client)):
                threading.Thread(target=self._copy, args=(pair, direction, source, sink), daemon=True).start()

    def _copy(self, pair: Pair, direction: str, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(_PIECE):
                sink.sendall(data)
                setattr(pair, direction, getattr(pair, direction) + len(data))
                self._check(pair, direction)
        except OSError:
            pass
        pair.cut()

    def _check(self, pair: Pair, direction: str) -> None:
        with self._guard:
            for entry in list(self._cuts):
                order, before = entry
                if order.direction != direction:
                    continue
                if getattr(pair, direction) - before.get(id(pair), 0) >= order.after:
                    self._cuts.remove(entry)
                    pair.cut()
                    order.done.set()
