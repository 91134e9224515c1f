"""Errors of this package. It imports nothing above it, so callers translate these into their own."""

from __future__ import annotations


class PrivacyError(Exception):
    """Base of all errors raised on purpose by this package."""


class MalformedError(PrivacyError):
    """Bytes do not have the form agreed on: canonical JSON, a leaf, a signed note, a proof or a bundle."""


class LedgerError(PrivacyError):
    """The hospital's own ledger cannot be used."""


class LedgerLocked(LedgerError):  # noqa: N818 - a state, said as one
    """Another process writes this ledger."""


class LedgerCorrupt(LedgerError):  # noqa: N818 - a state, said as one
    """The ledger's bytes do not match its own signed head; it must not be written to any more."""


class LedgerFault(PrivacyError):  # noqa: N818 - a fault, said as one
    """A peer's ledger is at fault.

    Args:
        message: what is wrong, for the log.
        evidence: bytes that show it; transferable only in `ForkFault`.
    """

    def __init__(self, message: str, evidence: bytes = b"") -> None:
        super().__init__(message)
        self.evidence = evidence


class ForkFault(LedgerFault):
    """A silo signed two different heads of one size. `evidence` convinces anybody: see `privacy.witness.check_fork`."""


class UnaskedFault(PrivacyError):  # noqa: N818 - a fault, said as one
    """A peer was not asked to prove that it extends the head that is held of it: nobody's fault but of whoever asks."""


class GateError(PrivacyError):
    """The gate was called out of order (a bug of the caller, or a second, different end of one round)."""


class BudgetRefused(PrivacyError):  # noqa: N818 - a refusal, said as one
    """The gate refuses: nothing may be read. The message is for the hospital's own log and never leaves it."""
