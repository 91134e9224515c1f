"""A recording of all that a server received and sent, for the demo's canary search and for tests. Never on by default:
it keeps other people's ciphertexts and masked vectors."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

from feddrm.contract.errors import InputError

_HEAD: Final = struct.Struct(">IQ")
Direction = Literal["received", "sent"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One serialised protobuf message; `peer` is the URI of the member at the other end."""

    direction: str
    method: str
    peer: str
    data: bytes = field(repr=False)


class Recorder:
    """Appends every message to a file: two lengths, a JSON head, the message's bytes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def write(self, direction: Direction, method: str, peer: str, data: bytes) -> None:
        """Append one message."""
        head = json.dumps({"direction": direction, "method": method, "peer": peer}).encode()
        self._file.write(_HEAD.pack(len(head), len(data)) + head + data)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_recording(path: Path) -> Iterator[Recorded]:
    """All messages of a recording, in order; a record cut off by a kill ends it.

    Raises:
        InputError: the file is no recording.
    """
    with path.open("rb") as source:
        while len(prefix := source.read(_HEAD.size)) == _HEAD.size:
            head_length, length = _HEAD.unpack(prefix)
            head, data = source.read(head_length), source.read(length)
            if len(head) != head_length or len(data) != length:
                return
            try:
                fields = json.loads(head)
                yield Recorded(fields["direction"], fields["method"], fields["peer"], data)
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path} is not a recording of feddrm traffic.") from error
