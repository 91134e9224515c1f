"""What the coordinator says became of every round, for an auditor: signed by its round key, and believed no further
than the silos' own acknowledgements in it carry.

One file: for each job the plan and the roster as the operator signed them, and how each round ended (feddrm.contract.
rounds). Acks of a round have one body, so they are written as one document with many signatures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from feddrm.contract import labels
from feddrm.contract.card import Noise
from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.messages import RoundOutcome
from feddrm.contract.operator_messages import NoiseFound
from feddrm.contract.signed import Signed, sign, signers

FORMAT: Final = "feddrm transcript 2"
MAXIMUM_TRANSCRIPT: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job's plan and roster, as signed, and its rounds' outcomes in order. Nothing in it is verified; `noise`,
    which the coordinator found in the sums, is its own word."""

    plan: Signed
    roster: Signed
    outcomes: tuple[RoundOutcome, ...]
    noise: NoiseFound | None = None

    def to_json(self) -> dict[str, Any]:
        """As an object of plain values."""
        return {
            "plan": self.plan.to_json(),
            "roster": self.roster.to_json(),
            "outcomes": [_outcome_to_json(outcome) for outcome in self.outcomes],
            "noise": None if self.noise is None else asdict(self.noise),
        }

    def to_bytes(self) -> bytes:
        """As the bytes of a JSON text, always the same."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, raw: object) -> JobRecord:
        """Read what `to_json` gave.

        Raises:
            MalformedError: it is not that.
        """
        # Records that a coordinator kept before it looked for noise have no such field.
        whole = {"noise": None, **raw} if isinstance(raw, dict) else raw
        fields = _fields(whole, {"plan", "roster", "outcomes", "noise"})
        outcomes = tuple(_outcome_from_json(one) for one in _list(fields["outcomes"]))
        plan, roster = Signed.from_json(_text(fields["plan"])), Signed.from_json(_text(fields["roster"]))
        return cls(plan, roster, outcomes, _noise_from_json(fields["noise"]))


def sign_transcript(jobs: Sequence[JobRecord], federation: str, round_key: Ed25519PrivateKey) -> str:
    """The transcript as a text that the coordinator signed."""
    body = json.dumps({"federation": federation, "jobs": [job.to_json() for job in jobs]}, ensure_ascii=False)
    signed = sign(round_key, labels.TRANSCRIPT, _digest(body))
    return json.dumps({"format": FORMAT, "body": body, "signed": signed.to_json()}, indent=1, ensure_ascii=False)


def read_transcript(text: bytes, *, federation: str, keys: Sequence[bytes]) -> tuple[JobRecord, ...]:
    """Check a transcript's signature, then read its jobs.

    Args:
        federation: that it must be of.
        keys: round keys of the federation's coordinators (32 bytes each), from rosters that the operator signed.

    Raises:
        MalformedError: it is none.
        VerificationError: none of `keys` signed it, or it is another federation's.
    """
    fields = _fields(_parse(text), {"format", "body", "signed"})
    if fields["format"] != FORMAT:
        raise MalformedError(f"This is not a {FORMAT}.")
    body, signed = _text(fields["body"]), Signed.from_json(_text(fields["signed"]))
    if signed.body != _digest(body) or not signers(signed, labels.TRANSCRIPT) & set(keys):
        raise VerificationError("The transcript is not signed by a round key of this federation's rosters.")
    content = _fields(_parse(body.encode()), {"federation", "jobs"})
    if content["federation"] != federation:
        raise VerificationError(f"The transcript is not of federation {federation}.")
    return tuple(JobRecord.from_json(job) for job in _list(content["jobs"]))


def _outcome_to_json(outcome: RoundOutcome) -> dict[str, Any]:
    acks = Signed(outcome.acks[0].body, tuple(s for a in outcome.acks for s in a.signatures)) if outcome.acks else None
    return {
        "round": outcome.round,
        "acks": acks.to_json() if acks else None,
        "sum": outcome.sum.hex(),
        "lost": outcome.lost.to_json() if outcome.lost else None,
    }


def _outcome_from_json(raw: object) -> RoundOutcome:
    fields = _fields(raw, {"round", "acks", "sum", "lost"})
    number, total = fields["round"], fields["sum"]
    if type(number) is not int or not 1 <= number <= 1_000_000 or not isinstance(total, str):
        raise MalformedError("A round is a number, and a sum is named in hexadecimal.")
    acks: tuple[Signed, ...] = ()
    if fields["acks"] is not None:
        together = Signed.from_json(_text(fields["acks"]))
        acks = tuple(Signed(together.body, (signature,)) for signature in together.signatures)
    lost = None if fields["lost"] is None else Signed.from_json(_text(fields["lost"]))
    try:
        return RoundOutcome(number, acks, bytes.fromhex(total), lost)
    except ValueError as error:
        raise MalformedError("A sum is named in hexadecimal.") from error


def _noise_from_json(raw: object) -> NoiseFound | None:
    if raw is None:
        return None
    try:
        return Noise.model_validate_json(json.dumps(raw), strict=True).found()
    except ValidationError as error:
        raise MalformedError("What is said of noise is not of the agreed form.") from error


def _digest(body: str) -> bytes:
    return hashlib.sha256(body.encode()).digest()


def _parse(text: bytes) -> object:
    if len(text) > MAXIMUM_TRANSCRIPT:
        raise MalformedError(f"A transcript of {len(text)} bytes exceeds the limit of {MAXIMUM_TRANSCRIPT}.")
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise MalformedError("This is not JSON.") from error


def _fields(raw: object, names: set[str]) -> Mapping[str, Any]:
    if not isinstance(raw, dict) or set(raw) != names:
        raise MalformedError(f"An object with exactly {', '.join(sorted(names))} is expected.")
    return raw


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise MalformedError("Text is expected.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MalformedError("Text is expected.") from error
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedError("A list is expected.")
    return value
