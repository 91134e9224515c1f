"""Looking for secrets in a recording of the coordinator's traffic."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from feddrm.contract import codec
from feddrm.contract.messages import SiloFrame
from feddrm.transport.recorder import Recorded
from secagg.wire import Step


def encodings(secret: bytes) -> Iterator[bytes]:
    """The forms in which bytes travel: as they are, hexadecimal, base64 at any offset."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    for offset in range(3):
        text = base64.b64encode(bytes(offset) + secret)
        yield text[4 if offset else 0 : len(text) // 4 * 4 - 4]


def found(traffic: Iterable[Recorded], secret: bytes) -> list[str]:
    """The methods of the messages that hold a secret in any form."""
    forms = [form for form in encodings(secret) if len(form) >= 4]
    return [message.method for message in traffic if any(form in message.data for form in forms)]


def from_silos(traffic: Iterable[Recorded]) -> bytes:
    """All that silos sent, whatever it travelled in."""
    return b"".join(m.data for m in traffic if m.direction == "received" and "SiloService" in m.method)


def masked_inputs(traffic: Iterable[Recorded]) -> list[bytes]:
    """The masked inputs that travelled with their frames."""
    attended = (m for m in traffic if m.direction == "received" and m.method.endswith("/Attend"))
    events = [codec.SILO_EVENT.decode(message.data) for message in attended]
    return [e.frame.attachment for e in events if isinstance(e, SiloFrame) and e.frame.step == Step.MASKED]


def windows(vector: NDArray[np.int64]) -> Iterator[bytes]:
    """Distinctive 16-byte pieces of an update in each integer form in which it might be sent."""
    for kind in ("<i4", "<i8"):
        words = vector.astype(kind).tobytes()
        for start in range(0, len(words) - 16, 16):
            window = words[start : start + 16]
            if len(set(window)) > 6:
                yield window


def json_documents(data: bytes) -> Iterator[dict[str, object]]:
    """Every JSON object that stands anywhere in the bytes."""
    decoder = json.JSONDecoder()
    text = data.decode("latin-1")
    position = text.find('{"')
    while position >= 0:
        try:
            document, end = decoder.raw_decode(text, position)
            yield document
            position = text.find('{"', end)
        except ValueError:
            position = text.find('{"', position + 1)


def numbers(value: object) -> Iterator[int | float]:
    """All numbers in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def keys(value: object) -> Iterator[str]:
    """All keys in a JSON value."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from keys(inner)
