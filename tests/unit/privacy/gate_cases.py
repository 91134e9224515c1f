"""What the tests of the gate share."""

from __future__ import annotations

from privacy_cases import EVENT, NOW, PLAN, WHOLE, note_data

from privacy.gate import AbortReason, Gate, Reservation

OTHER = b"q" * 32


def opened(gate: Gate) -> Gate:
    gate.open_job(PLAN, "job", 1e-5, WHOLE, now_ms=NOW)
    note_data(gate)
    return gate


def reserve(gate: Gate, number: int, plan: bytes = PLAN, stage: int = 1) -> Reservation:
    return gate.reserve(plan, stage, number, EVENT, model=bytes(32), now_ms=NOW)


def finish(gate: Gate, reservation: Reservation) -> None:
    gate.commit(reservation, bytes(32), now_ms=NOW)
    gate.release(reservation.plan, reservation.stage, reservation.round, sum=bytes(32), model=bytes(32), now_ms=NOW)


def lose(gate: Gate, number: int) -> None:
    reserve(gate, number)
    gate.abort(PLAN, 1, number, AbortReason.LOST, now_ms=NOW)
