"""Errors of the secure aggregation core, by whose fault they are.

The package imports nothing above it, so these do not derive from the errors that people read; roles translate them.
"""

from __future__ import annotations

from collections.abc import Mapping


class SecaggError(Exception):
    """Base of everything this package raises on purpose."""


class WireError(SecaggError):
    """Bytes do not have the agreed form: truncated, trailing, oversized or malformed. A sender's fault."""


class UnsoundError(SecaggError):
    """Parameters that the protocol's proof does not cover: threshold, cohort, colluders, or a ring that would wrap."""


class MisuseError(SecaggError):
    """The local caller broke the contract of this package: a used or dead state, a wrong array, bad entropy."""


class ProtocolViolation(SecaggError):  # noqa: N818  a verdict on a peer, not a local error
    """A silo's verdict: `peer` (a silo's name, or empty for the coordinator) broke the protocol.

    The session is dead for this silo. Where the fault of a silo can be shown to a third party, `evidence` convinces
    secagg.evidence.judge; otherwise it is empty. Evidence against the coordinator is its signed frames, for people.
    """

    def __init__(self, peer: str, reason: str, evidence: bytes = b"") -> None:
        super().__init__(f"{peer or 'the coordinator'}: {reason}")
        self.peer = peer
        self.reason = reason
        self.evidence = evidence


class Rejected(SecaggError):  # noqa: N818  a verdict on a peer, not a local error
    """The coordinator's verdict on one frame: it is not counted. `evidence` as in ProtocolViolation."""

    def __init__(self, peer: str, reason: str, evidence: bytes = b"") -> None:
        super().__init__(f"{peer}: {reason}")
        self.peer = peer
        self.reason = reason
        self.evidence = evidence


class Failed(SecaggError):  # noqa: N818  a verdict on a session, not a local error
    """The session cannot produce a sum. `blamed` names the silos whose fault it is, `evidence` holds what convinces
    secagg.evidence.judge of it, by name; both may be empty."""

    def __init__(self, blamed: frozenset[str], reason: str, evidence: Mapping[str, bytes] | None = None) -> None:
        super().__init__(reason)
        self.blamed = blamed
        self.reason = reason
        self.evidence: Mapping[str, bytes] = evidence or {}
