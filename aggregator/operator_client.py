"""The operator's calls to a running coordinator, over mutual TLS with the operator's own certificate."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from aggregator.homes import load_operator_home
from feddrm.contract import codec, codec_operator
from feddrm.contract.codec_records import Converter
from feddrm.contract.operator_messages import (
    JobReceipt,
    PublishRelease,
    ReleaseList,
    ReleaseSummary,
    RosterReceipt,
    Status,
    StatusRequest,
    StopJob,
)
from feddrm.contract.signed import Signed
from feddrm.transport.client import make_sync_channel, translated
from feddrm.v1 import operator_pb2_grpc

T = TypeVar("T")
_SECONDS: Final = 30.0


class OperatorClient:
    """One connection. Every method raises a FeddrmError that says why it failed."""

    def __init__(self, directory: Path) -> None:
        home = load_operator_home(directory)
        home.check_current(time.time_ns() // 1_000_000)
        self._address = home.address
        self._channel = make_sync_channel(home.address, home.tls)
        self._stub: Any = operator_pb2_grpc.OperatorServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def publish_roster(self, roster: Signed) -> RosterReceipt:
        """Give the coordinator a newer roster."""
        return self._call("PublishRoster", codec.SIGNED.to_wire(roster), codec_operator.ROSTER_RECEIPT)

    def start_job(self, plan: Signed) -> JobReceipt:
        """Start a signed plan."""
        return self._call("StartJob", codec.SIGNED.to_wire(plan), codec_operator.JOB_RECEIPT)

    def stop_job(self, plan: bytes, reason: str) -> JobReceipt:
        """Stop a job."""
        return self._call("StopJob", codec_operator.STOP_JOB.to_wire(StopJob(plan, reason)), codec_operator.JOB_RECEIPT)

    def status(self) -> Status:
        """The newest job."""
        return self._call("Status", codec_operator.STATUS_REQUEST.to_wire(StatusRequest()), codec_operator.STATUS)

    def releases(self) -> ReleaseList:
        """All releases, newest first."""
        return self._call(
            "ListReleases", codec_operator.STATUS_REQUEST.to_wire(StatusRequest()), codec_operator.RELEASE_LIST
        )

    def publish_release(self, release: str) -> ReleaseSummary:
        """Put a release into service."""
        message = codec_operator.PUBLISH_RELEASE.to_wire(PublishRelease(release))
        return self._call("PublishRelease", message, codec_operator.RELEASE_SUMMARY)

    def _call(self, method: str, message: Any, reply: Converter[T]) -> T:
        with translated(self._address):
            return reply.from_wire(getattr(self._stub, method)(message, timeout=_SECONDS))
