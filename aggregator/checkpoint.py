"""The coordinator's state as canonical JSON and back, so that a restart replays the events of one attempt at most.

Only states without an open session are written: a session is the product of its own events, and secagg keeps what it
holds to itself. The shared model stands apart as a blob, named here by its hash.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator.blobs import MODELS
from aggregator.coordinator import Coordinator
from aggregator.events import BlobReader
from aggregator.job import Job, Presence
from aggregator.phases import Ended, Gathering, Phase, Proposing
from aggregator.release import Candidate, Releases
from feddrm.contract.codec import FRAME, PLAN_ANSWER, READY, ROUND_OUTCOME, SIGNED
from feddrm.contract.codec_operator import ROUND_SUMMARY
from feddrm.contract.errors import VerificationError
from feddrm.contract.messages import RoundOutcome
from feddrm.contract.operator_messages import RoundSummary
from feddrm.contract.roster import verify_roster
from feddrm.contract.signed import Signature, Signed
from feddrm.contract.signed_plan import verify_plan
from feddrm.method.layout import layout_of
from feddrm.method.progress import state_size
from feddrm.method.update import model_hash

_VERSION = 3
_ROUNDS = 4096


def encode(coordinator: Coordinator) -> bytes:
    """The state as bytes. The model's blob must be kept beside it (`blobs_of`).

    Raises:
        ValueError: a session is open.
    """
    releases = coordinator.releases
    state = {
        "version": _VERSION,
        "roster": _text(SIGNED.encode(coordinator.signed_roster)),
        "presences": {name: _presence(p) for name, p in sorted(coordinator.presences.items())},
        "used_plans": sorted(plan.hex() for plan in coordinator.used_plans),
        "current": releases.current,
        "releases": [_candidate(candidate) for candidate in releases.candidates.values()],
        "job": None if coordinator.job is None else _job(coordinator.job),
    }
    return json.dumps(state, sort_keys=True, separators=(",", ":")).encode()


def blobs_of(coordinator: Coordinator) -> frozenset[bytes]:
    """The model blobs that this state needs."""
    blobs = {candidate.model for candidate in coordinator.releases.candidates.values()}
    if coordinator.job is not None:
        blobs.add(coordinator.job.blob)
    return frozenset(blobs)


def decode(
    data: bytes, *, federation: str, operator: bytes, signer: Ed25519PrivateKey, blobs: BlobReader
) -> Coordinator:
    """The coordinator that `encode` wrote.

    Raises:
        VerificationError: the state is damaged, or of a newer version.
    """
    raw = json.loads(data)
    if raw["version"] != _VERSION:
        raise VerificationError(f"The state is of version {raw['version']}; this software knows {_VERSION}.")
    coordinator = Coordinator(
        federation=federation, operator=operator, signer=signer, roster=SIGNED.decode(_bytes(raw["roster"]))
    )
    coordinator.presences = {name: _read_presence(entry) for name, entry in raw["presences"].items()}
    coordinator.used_plans = {bytes.fromhex(plan) for plan in raw["used_plans"]}
    candidates = [_read_candidate(entry, federation, operator) for entry in raw["releases"]]
    coordinator.releases = Releases({candidate.id: candidate for candidate in candidates}, raw["current"])
    if raw["job"] is not None:
        coordinator.job = _read_job(raw["job"], federation, operator, blobs)
    return coordinator


def _job(job: Job) -> dict[str, Any]:
    return {
        "plan": _text(SIGNED.encode(job.signed_plan.signed)),
        "roster": _text(SIGNED.encode(job.signed_roster)),
        "model": job.blob.hex(),
        "models": [model.hex() for model in job.models],
        "started_ms": job.started_ms,
        "phase": _phase(job.phase),
        "answers": {name: _text(PLAN_ANSWER.encode(answer)) for name, answer in sorted(job.answers.items())},
        "declined_boot": {name: boot.hex() for name, boot in sorted(job.declined_boot.items())},
        "barred": {name: [boot.hex(), why] for name, (boot, why) in sorted(job.barred.items())},
        "offences": dict(sorted(job.offences.items())),
        "accusers": {name: sorted(voices) for name, voices in sorted(job.accusers.items())},
        "quarrels": dict(sorted(job.quarrels.items())),
        "outcomes": [_outcome(outcome) for outcome in job.outcomes],
        "history": [_summary(summary) for summary in job.history],
    }


def _read_job(raw: Mapping[str, Any], federation: str, operator: bytes, blobs: BlobReader) -> Job:
    plan = verify_plan(SIGNED.decode(_bytes(raw["plan"])), federation=federation, operator=operator)
    roster = SIGNED.decode(_bytes(raw["roster"]))
    layout = layout_of(plan.plan)
    model = np.frombuffer(blobs.get(MODELS, bytes.fromhex(raw["model"])), dtype="<i8").astype(np.int64)
    models = [bytes.fromhex(entry) for entry in raw["models"]]
    if model_hash(model) != models[-1] or len(model) != state_size(plan.plan, layout):
        raise VerificationError("The stored model is not the one that the job's state names.")
    return Job(
        signed_plan=plan,
        roster=verify_roster(roster, federation=federation, operator=operator),
        signed_roster=roster,
        layout=layout,
        model=model,
        models=models,
        started_ms=raw["started_ms"],
        phase=_read_phase(raw["phase"]),
        answers={name: PLAN_ANSWER.decode(_bytes(entry)) for name, entry in raw["answers"].items()},
        declined_boot={name: bytes.fromhex(boot) for name, boot in raw["declined_boot"].items()},
        barred={name: (bytes.fromhex(boot), why) for name, (boot, why) in raw["barred"].items()},
        offences=dict(raw["offences"]),
        accusers={name: set(voices) for name, voices in raw["accusers"].items()},
        quarrels=dict(raw["quarrels"]),
        outcomes=[ROUND_OUTCOME.decode(_bytes(entry)) for entry in raw["outcomes"]],
        history=[ROUND_SUMMARY.decode(_bytes(entry)) for entry in raw["history"]],
    )


# A checkpoint every round writes all earlier rounds again.
@lru_cache(maxsize=_ROUNDS)
def _outcome(outcome: RoundOutcome) -> str:
    return _text(ROUND_OUTCOME.encode(outcome))


@lru_cache(maxsize=_ROUNDS)
def _summary(summary: RoundSummary) -> str:
    return _text(ROUND_SUMMARY.encode(summary))


def _phase(phase: Phase) -> dict[str, Any]:
    match phase:
        case Gathering():
            return {
                "kind": "gathering",
                "round": phase.round,
                "attempt": phase.attempt,
                "since_ms": phase.since_ms,
                "not_before_ms": phase.not_before_ms,
                "certificate": [_text(FRAME.encode(frame)) for frame in phase.certificate],
                "resting": phase.resting,
                "shown": {name: sorted(sizes) for name, sizes in sorted(phase.shown.items())},
            }
        case Proposing():
            signatures = {name: _signature(s) for name, s in sorted(phase.signatures.items())}
            return {
                "kind": "proposing",
                "statement": _text(phase.statement),
                "since_ms": phase.since_ms,
                "signatures": signatures,
            }
        case Ended(completed, reason):
            return {"kind": "ended", "completed": completed, "reason": reason}
        case _:
            raise ValueError("an open session is not written to a checkpoint")


def _read_phase(raw: Mapping[str, Any]) -> Phase:
    if raw["kind"] == "gathering":
        certificate = tuple(FRAME.decode(_bytes(entry)) for entry in raw["certificate"])
        shown = {name: set(sizes) for name, sizes in raw["shown"].items()}
        times = raw["since_ms"], raw["not_before_ms"]
        return Gathering(raw["round"], raw["attempt"], *times, certificate, dict(raw["resting"]), shown)
    if raw["kind"] == "proposing":
        signatures = {name: _read_signature(entry) for name, entry in raw["signatures"].items()}
        return Proposing(_bytes(raw["statement"]), raw["since_ms"], signatures)
    return Ended(raw["completed"], raw["reason"])


def _presence(presence: Presence) -> dict[str, Any]:
    return {
        "connected": presence.connected,
        "heard_ms": presence.heard_ms,
        "left_ms": presence.left_ms,
        "ready": None if presence.ready is None else _text(READY.encode(presence.ready)),
        "told": presence.told,
        "disputed": presence.disputed,
    }


def _read_presence(raw: Mapping[str, Any]) -> Presence:
    return Presence(
        connected=raw["connected"],
        heard_ms=raw["heard_ms"],
        left_ms=raw["left_ms"],
        ready=None if raw["ready"] is None else READY.decode(_bytes(raw["ready"])),
        told=raw["told"],
        disputed=raw["disputed"],
    )


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "plan": _text(SIGNED.encode(candidate.plan.signed)),
        "statement": _text(candidate.statement),
        "signatures": [_signature(signature) for signature in candidate.signatures],
        "model": candidate.model.hex(),
        "published": candidate.published,
    }


def _read_candidate(raw: Mapping[str, Any], federation: str, operator: bytes) -> Candidate:
    signed: Signed = SIGNED.decode(_bytes(raw["plan"]))
    return Candidate(
        plan=verify_plan(signed, federation=federation, operator=operator),
        statement=_bytes(raw["statement"]),
        signatures=tuple(_read_signature(entry) for entry in raw["signatures"]),
        model=bytes.fromhex(raw["model"]),
        published=raw["published"],
    )


def _signature(signature: Signature) -> list[str]:
    return [signature.key.hex(), signature.signature.hex()]


def _read_signature(raw: list[str]) -> Signature:
    return Signature(bytes.fromhex(raw[0]), bytes.fromhex(raw[1]))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
