"""How errors arrive at the other end, and a recording that was cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from feddrm.contract.authority import Address
from feddrm.contract.errors import (
    AlreadyRunningError,
    BudgetError,
    FeddrmError,
    InputError,
    MalformedError,
    NotAuthorisedError,
    UnreachableError,
    UsageError,
    VerificationError,
)
from feddrm.contract.identity import Role
from feddrm.transport.recorder import Recorder, read_recording
from feddrm.transport.status import (
    BusyError,
    DisconnectedError,
    NoReleaseError,
    ReleaseChangedError,
    error_of,
    status_of,
)

ERRORS: list[FeddrmError] = [
    MalformedError("d"),
    NotAuthorisedError("d"),
    BusyError("d"),
    NoReleaseError("d"),
    ReleaseChangedError("d"),
    UnreachableError("d"),
    BudgetError("d"),
    VerificationError("d"),
    AlreadyRunningError("d"),
    InputError("d"),
]


class Failure(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: Any, details: str, kind: str | None = None) -> None:
        self._all = (code, details, kind)

    def code(self) -> Any:
        return self._all[0]

    def details(self) -> str:
        return self._all[1]

    def trailing_metadata(self) -> Any:
        return (("feddrm-error", self._all[2]),) if self._all[2] else None


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_its_own_kind(error: FeddrmError) -> None:
    status = status_of(error, Role.SILO)
    again = error_of(Failure(status.code, status.sentence, status.kind), "agg.example.org:8002")
    assert type(again) is type(error)
    assert "agg.example.org:8002" in str(again)
    assert status.sentence != "d"
    assert status_of(error, Role.OPERATOR).sentence == "d"
    assert status_of(error, None).sentence == status.sentence


def test_usage_is_the_callers_input() -> None:
    status = status_of(UsageError("d"), Role.SILO)
    assert type(error_of(Failure(status.code, "x", status.kind), "a")) is InputError


def test_a_sentence_for_the_operator_cannot_steer_a_terminal() -> None:
    assert "\x1b" not in status_of(InputError("a\x1b[2J\nb" * 500), Role.OPERATOR).sentence
    assert len(status_of(InputError("a" * 5000), Role.OPERATOR).sentence) == 1000
    hostile = Failure(grpc.StatusCode.INVALID_ARGUMENT, "a\x1b[2Jb", "malformed")
    assert "\x1b" not in str(error_of(hostile, "a"))


@pytest.mark.parametrize(
    ("code", "detail", "kind", "sentence"),
    [
        ("UNAVAILABLE", "CERTIFICATE_VERIFY_FAILED: certificate has expired", VerificationError, "has expired"),
        ("UNAVAILABLE", "CERTIFICATE_VERIFY_FAILED: certificate is not yet valid", VerificationError, "not valid yet"),
        ("UNAVAILABLE", "errors resolving x: DNS query failed: lookup", DisconnectedError, "not known"),
        ("UNAVAILABLE", "HTTP proxy returned response code 403", DisconnectedError, "proxy"),
        ("UNAVAILABLE", "Network is unreachable", DisconnectedError, "no network route"),
        ("UNAVAILABLE", "GOAWAY received", DisconnectedError, "closed the connection"),
        ("UNAVAILABLE", None, DisconnectedError, "closed the connection"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", UnreachableError, "in time"),
        ("CANCELLED", "cancelled", UnreachableError, "CANCELLED"),
        ("RESOURCE_EXHAUSTED", "Received message larger than max", MalformedError, "size limit"),
    ],
)
def test_what_grpc_itself_reports(code: str, detail: str, kind: type[FeddrmError], sentence: str) -> None:
    error = error_of(Failure(getattr(grpc.StatusCode, code), detail), Address("agg.example.org", 8002))
    assert type(error) is kind
    assert sentence in str(error)


def test_a_recording_cut_by_a_kill_ends_and_garbage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    with Recorder(path) as recorder:
        recorder.write("received", "/m", "p", b"one")
        recorder.write("sent", "/m", "p", b"two")
    assert [r.data for r in read_recording(path)] == [b"one", b"two"]
    path.write_bytes(path.read_bytes()[:-1])
    assert [r.data for r in read_recording(path)] == [b"one"]
    path.write_bytes((2).to_bytes(4) + (0).to_bytes(8) + b"xx")
    with pytest.raises(InputError):
        list(read_recording(path))
