from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from privacy_cases import CAPS, EVENT, NOW, ORIGIN, PLAN, WHOLE, note_data

from privacy.gate import Gate
from privacy.leaves import Dataset
from privacy.ledger import Ledger


@pytest.fixture
def signer() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(b"s" * 32)


@pytest.fixture
def key(signer: Ed25519PrivateKey) -> bytes:
    return signer.public_key().public_bytes_raw()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path, signer: Ed25519PrivateKey) -> Iterator[Ledger]:
    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as opened:
        yield opened


@pytest.fixture
def gate(ledger: Ledger) -> Gate:
    return Gate(ledger, CAPS)


@pytest.fixture
def play() -> Callable[..., None]:
    """Opens the job and plays rounds, each reserved, committed and released."""

    def run(gate: Gate, rounds: range) -> None:
        gate.open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW)
        note_data(gate)
        for number in rounds:
            reservation = gate.reserve(PLAN, 1, number, EVENT, model=bytes(32), now_ms=NOW)
            gate.commit(reservation, bytes([number]) * 32, now_ms=NOW)
            gate.release(PLAN, 1, number, sum=bytes(32), model=bytes(32), now_ms=NOW)

    return run


@pytest.fixture
def grown(path: Path, signer: Ed25519PrivateKey) -> Path:
    with Ledger.open(path, ORIGIN, signer, now_ms=NOW) as ledger:
        for number in range(5):
            ledger.append(Dataset(bytes(32), bytes([number]) * 32, bytes(32), "id", 1000), now_ms=NOW + number)
    return path


@pytest.fixture
def played(gate: Gate, play: Callable[..., None]) -> Gate:
    play(gate, range(1, 3))
    return gate
