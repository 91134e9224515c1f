"""Every message of feddrm.contract.messages, to protobuf and back: the only importer of the generated *_pb2 modules.

Each converter is named after its dataclass and has `to_wire`, `from_wire` (protobuf messages, as gRPC's generated
stubs pass them), `encode` and `decode` (bytes). Receiving refuses missing, oversized, malformed and unknown fields
with MalformedError; nothing else ever escapes. Signed bodies stay opaque: their signatures are checked by whoever
knows the key, before anybody parses them.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any, Final

from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from feddrm.contract import query_messages as q
from feddrm.contract.chunks import CHUNK_BYTES
from feddrm.contract.codec_kinds import Bytes, EnumField, Flag, Int, NameField, Real, Sentence, Word
from feddrm.contract.codec_records import Many, One, OneOf, Record, Wrapped
from feddrm.contract.names import SiloId
from feddrm.contract.plan import MAXIMUM_SILOS
from feddrm.contract.signed import MAXIMUM_BODY, MAXIMUM_SIGNATURES, Signature, Signed
from feddrm.v1 import common_pb2, operator_pb2, query_pb2, silo_pb2
from secagg.dealing import CIPHERTEXT_SIZE
from secagg.wire import MAXIMUM_BODY as MAXIMUM_FRAME
from secagg.wire import MAXIMUM_EVIDENCE, MAXIMUM_PROOF, Frame, Step

MAXIMUM_BLOB: Final = 1 << 34
MAXIMUM_SEALED: Final = 2 << 20
# Embeddings in a request, and silos that one of them is routed to.
MAXIMUM_ROUTES: Final = 1024
MAXIMUM_OPINIONS: Final = 2
# The widest layer of a plan at the most bits for a unit.
MAXIMUM_CODE: Final = 4096 * 16 // 8

_HASH = Bytes(32, 32)
_HASH_OR_EMPTY = Bytes(32, 32, or_empty=True)
_NAME = NameField()
_COUNT = Int(0, (1 << 31) - 1)
_VERSION = Int(1, (1 << 53) - 1)
_SIZE = Int(0, (1 << 53) - 1)
_ROUND = Int(0, 10_000)
_STAGE = Int(0, 5)
_RELEASE_ID = Word(frozenset("0123456789abcdef"), 16, 16)
_REFUSAL = Word(frozenset(string.ascii_lowercase + "-"), 0, 32)
_SHORT = Sentence(128)
_LONG = Sentence(2000)


def _itself(value: Any) -> Any:
    return value


_SILO_NAMES = Many(_NAME, MAXIMUM_SILOS, distinct=_itself)


SIGNATURE = Record(Signature, common_pb2.Signature, key=_HASH, signature=Bytes(64, 64))
SIGNED = Record(
    Signed,
    common_pb2.Signed,
    body=Bytes(1, MAXIMUM_BODY),
    signatures=Many(SIGNATURE, MAXIMUM_SIGNATURES, minimum=1, distinct=lambda s: s.key),
)
_SIGNED = One(SIGNED)


# What may be attached to a frame of a step.
_LARGEST_ATTACHMENT: Final = {
    Step.KEYS: MAXIMUM_PROOF,
    Step.SHARES: CIPHERTEXT_SIZE * (MAXIMUM_SILOS - 1),
    Step.MASKED: m.SMALL_VECTOR,
    Step.PUBLISH: m.SMALL_VECTOR,
    Step.ABORT: MAXIMUM_EVIDENCE,
}


def _frame_sound(frame: Frame) -> str | None:
    largest = _LARGEST_ATTACHMENT.get(Step(frame.step), 0)
    size = len(frame.attachment)
    return f"of step {frame.step} carries {size} bytes where at most {largest} belong" if size > largest else None


FRAME = Record(
    Frame,
    common_pb2.Frame,
    step=Int(min(Step), max(Step)),
    sender=NameField(or_empty=True),
    body=Bytes(1, MAXIMUM_FRAME),
    signature=Bytes(64, 64),
    attachment=Bytes(0, max(_LARGEST_ATTACHMENT.values())),
    sound=_frame_sound,
)
_FRAMES = Many(FRAME, MAXIMUM_SILOS)


def _chunk_sound(chunk: m.Chunk) -> str | None:
    return "reaches beyond its blob" if chunk.offset + len(chunk.data) > chunk.size else None


CHUNK = Record(
    m.Chunk,
    common_pb2.Chunk,
    blob=_HASH,
    size=Int(1, MAXIMUM_BLOB),
    offset=Int(0, MAXIMUM_BLOB),
    data=Bytes(1, CHUNK_BYTES),
    digest=_HASH,
    sound=_chunk_sound,
)
FETCH = Record(m.Fetch, common_pb2.FetchRequest, blob=_HASH, offset=Int(0, MAXIMUM_BLOB))
UPLOAD_RECEIPT = Record(m.UploadReceipt, silo_pb2.UploadReceipt, blob=_HASH, held=Int(0, MAXIMUM_BLOB), complete=Flag())
HELLO_REQUEST = Record(m.HelloRequest, common_pb2.HelloRequest, software=_SHORT)
HELLO = Record(m.Hello, common_pb2.HelloReply, software=_SHORT, federation=_NAME, time_ms=_SIZE, roster=_SIGNED)


@dataclass(frozen=True, slots=True)
class _Witnessed:
    silo: SiloId
    size: int


class _WitnessedPair:
    """(silo, ledger size) pairs are plain tuples in Ready."""

    native = tuple
    record = Record(_Witnessed, silo_pb2.Witnessed, silo=_NAME, size=_SIZE)

    def to_wire(self, value: tuple[SiloId, int]) -> Any:
        return self.record.to_wire(_Witnessed(*value))

    def from_wire(self, message: Any) -> tuple[SiloId, int]:
        pair = self.record.from_wire(message)
        return pair.silo, pair.size


READY = Record(
    m.Ready,
    silo_pb2.Ready,
    boot=Bytes(16, 16),
    plan=_HASH_OR_EMPTY,
    round=_ROUND,
    model=_HASH_OR_EMPTY,
    witnessed=Many(_WitnessedPair(), MAXIMUM_SILOS, distinct=lambda pair: pair[0]),
    roster=_HASH,
)


def _plan_answer_sound(answer: m.PlanAnswer) -> str | None:
    return "needs a reason exactly when it declines" if answer.accepted == (answer.reason is not None) else None


PLAN_ANSWER = Record(
    m.PlanAnswer,
    silo_pb2.PlanAnswer,
    plan=_HASH,
    accepted=Flag(),
    reason=EnumField(m.DeclineReason, or_none=True),
    sound=_plan_answer_sound,
)
SILO_EVENT: OneOf[m.SiloEvent] = OneOf(
    silo_pb2.SiloEvent,
    ready=READY,
    plan_answer=PLAN_ANSWER,
    frame=Wrapped(m.SiloFrame, "frame", FRAME),
    ack=Wrapped(m.AckEvent, "ack", SIGNED),
    release_signature=Wrapped(m.ReleaseSignature, "statement", SIGNED),
)


def _outcome_sound(outcome: m.RoundOutcome) -> str | None:
    published = bool(outcome.acks) and bool(outcome.sum) and outcome.lost is None
    lost = not outcome.acks and not outcome.sum and outcome.lost is not None
    return None if published or lost else "must be either published, with acks and a sum, or lost"


ROUND_OUTCOME = Record(
    m.RoundOutcome,
    silo_pb2.RoundOutcome,
    round=_ROUND,
    acks=Many(SIGNED, MAXIMUM_SILOS),
    sum=_HASH_OR_EMPTY,
    lost=One(SIGNED, or_none=True),
    sound=_outcome_sound,
)
ANNOUNCE = Record(
    m.Announce,
    silo_pb2.Announce,
    frame=One(FRAME),
    abort_certificate=_FRAMES,
    previous=One(ROUND_OUTCOME, or_none=True),
    witnessed=Many(_SIZE, MAXIMUM_SILOS),
)
STEP_FRAMES = Record(m.StepFrames, silo_pb2.Step, session=_HASH, step=Int(min(Step), max(Step)), frames=_FRAMES)
PUBLISH = Record(m.Publish, silo_pb2.Publish, frame=One(FRAME), sum=_HASH)
ABORT_REQUEST = Record(m.AbortRequest, silo_pb2.AbortRequest, session=_HASH, reason=_LONG)
RELEASE_PROPOSAL = Record(m.ReleaseProposal, silo_pb2.ReleaseProposal, statement=Bytes(1, MAXIMUM_BODY))
JOB_ENDED = Record(m.JobEnded, silo_pb2.JobEnded, plan=_HASH, reason=_LONG, completed=Flag())
NOTICE = Record(m.Notice, silo_pb2.Notice, text=_LONG)
COORDINATOR_EVENT: OneOf[m.CoordinatorEvent] = OneOf(
    silo_pb2.CoordinatorEvent,
    job_offer=Wrapped(m.JobOffer, "plan", SIGNED),
    announce=ANNOUNCE,
    step=STEP_FRAMES,
    publish=PUBLISH,
    abort_request=ABORT_REQUEST,
    outcome=Wrapped(m.OutcomeEvent, "outcome", ROUND_OUTCOME),
    release_proposal=RELEASE_PROPOSAL,
    job_ended=JOB_ENDED,
    notice=NOTICE,
    roster=Wrapped(m.RosterOffer, "roster", SIGNED),
)


def _answer_sound(answer: q.Answer) -> str | None:
    return "needs either an answer or a refusal" if bool(answer.answer) == bool(answer.refusal) else None


CAPACITY = Record(q.Capacity, silo_pb2.Capacity, capacity=Int(0, 100_000), release=_HASH)
ANSWER = Record(
    q.Answer,
    silo_pb2.Answer,
    query=_HASH,
    answer=Bytes(0, MAXIMUM_SEALED),
    refusal=_REFUSAL,
    sound=_answer_sound,
)
SERVE_EVENT: OneOf[q.ServeEvent] = OneOf(silo_pb2.ServeEvent, capacity=CAPACITY, answer=ANSWER)
SEALED_QUERY = Record(
    q.SealedQuery,
    silo_pb2.SealedQuery,
    querier=_NAME,
    query=_HASH,
    sealed=Bytes(1, MAXIMUM_SEALED),
    ticket=_SIGNED,
)

GET_RELEASE = Record(q.GetRelease, query_pb2.GetReleaseRequest)
QUERIER_RELEASE = Record(q.QuerierRelease, query_pb2.QuerierRelease, plan=_SIGNED, statement=_SIGNED, trunk=_HASH)


def _route_request_sound(request: q.RouteRequest) -> str | None:
    lengths = {len(code) for code in request.codes}
    return "holds codes of different lengths" if len(lengths) > 1 else None


ROUTE_REQUEST = Record(
    q.RouteRequest,
    query_pb2.RouteRequest,
    release=_HASH,
    codes=Many(Bytes(1, MAXIMUM_CODE), MAXIMUM_ROUTES, minimum=1),
    sound=_route_request_sound,
)
ROUTE = Record(q.Route, query_pb2.Route, silo=_NAME, roster_version=_VERSION, ticket=_SIGNED)
ROUTE_ROW = Record(
    q.RouteRow, query_pb2.RouteRow, routes=Many(ROUTE, MAXIMUM_OPINIONS, minimum=1, distinct=lambda route: route.silo)
)
ROUTE_REPLY = Record(q.RouteReply, query_pb2.RouteReply, rows=Many(ROUTE_ROW, MAXIMUM_ROUTES, minimum=1))
ASK = Record(q.Ask, query_pb2.AskRequest, silo=_NAME, ticket=_SIGNED, sealed=Bytes(1, MAXIMUM_SEALED))
ASK_REPLY = Record(q.AskReply, query_pb2.AskReply, answer=Bytes(1, MAXIMUM_SEALED))

ROSTER_RECEIPT = Record(o.RosterReceipt, operator_pb2.RosterReceipt, version=_VERSION)
STOP_JOB = Record(o.StopJob, operator_pb2.StopJobRequest, plan=_HASH, reason=_LONG)
JOB_RECEIPT = Record(o.JobReceipt, operator_pb2.JobReceipt, plan=_HASH, state=_SHORT)
STATUS_REQUEST = Record(o.StatusRequest, operator_pb2.StatusRequest, plan=_HASH_OR_EMPTY)
SILO_STATUS = Record(
    o.SiloStatus,
    operator_pb2.SiloStatus,
    name=_NAME,
    connected=Flag(),
    state=_LONG,
    rounds_joined=_COUNT,
    capacity=_COUNT,
)
ROUND_SUMMARY = Record(
    o.RoundSummary,
    operator_pb2.RoundSummary,
    round=_ROUND,
    attempt=_COUNT,
    outcome=_SHORT,
    cohort=_SILO_NAMES,
    survivors=_SILO_NAMES,
    mask_keys_opened=_SILO_NAMES,
    sum=_HASH_OR_EMPTY,
    stage=_STAGE,
)
FIGURE = Record(o.NamedFigure, operator_pb2.Figure, name=_SHORT, value=Real(0.0, 1.0), deviation=Real(0.0, 1e9))
NOISE = Record(
    o.NoiseFound,
    operator_pb2.Noise,
    places=_COUNT,
    ratio=Real(0.0, 1e9),
    chance=Real(0.0, 1.0),
    needed=_COUNT,
    short=Flag(),
)
STATUS = Record(
    o.Status,
    operator_pb2.StatusReply,
    federation=_NAME,
    roster_version=_SIZE,
    plan=_HASH_OR_EMPTY,
    job=NameField(or_empty=True),
    state=_SHORT,
    round=_ROUND,
    rounds=_ROUND,
    attempt=_COUNT,
    step=_SHORT,
    waiting_for=_SILO_NAMES,
    silos=Many(SILO_STATUS, MAXIMUM_SILOS, distinct=lambda silo: silo.name),
    history=Many(ROUND_SUMMARY, o.HISTORY_LIMIT),
    detail=_LONG,
    release=Word(_RELEASE_ID.characters, 0, 16),
    stage=_STAGE,
    figures=Many(FIGURE, 16),
    noise=One(NOISE, or_none=True),
)
RELEASE_SUMMARY = Record(
    o.ReleaseSummary,
    operator_pb2.ReleaseSummary,
    id=_RELEASE_ID,
    plan=_HASH,
    signatures=_COUNT,
    threshold=_COUNT,
    published=Flag(),
    signed_plan=_SIGNED,
    statement=_SIGNED,
)
RELEASE_LIST = Record(o.ReleaseList, operator_pb2.ReleaseList, releases=Many(RELEASE_SUMMARY, 10_000))
PUBLISH_RELEASE = Record(o.PublishRelease, operator_pb2.PublishReleaseRequest, id=_RELEASE_ID)
