"""Every message of silos and queriers, to protobuf and back. The operator's are in codec_operator.

These two are the only importers of the generated *_pb2 modules.

Each converter is named after its dataclass and has `to_wire`, `from_wire` (protobuf messages, as gRPC's generated
stubs pass them), `encode` and `decode` (bytes). Receiving refuses missing, oversized, malformed and unknown fields
with MalformedError; nothing else ever escapes. Signed bodies stay opaque: their signatures are checked by whoever
knows the key, before anybody parses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from feddrm.contract import messages as m
from feddrm.contract import query_messages as q
from feddrm.contract.chunks import CHUNK_BYTES
from feddrm.contract.codec_fields import HASH, HASH_OR_EMPTY, LONG, NAME, REFUSAL, ROUND, SHORT, SIZE, VERSION
from feddrm.contract.codec_kinds import Bytes, EnumField, Flag, Int, NameField
from feddrm.contract.codec_records import Many, One, OneOf, Record, Wrapped
from feddrm.contract.names import SiloId
from feddrm.contract.sections import MAXIMUM_SILOS
from feddrm.contract.signed import MAXIMUM_BODY, MAXIMUM_SIGNATURES, Signature, Signed
from feddrm.v1 import common_pb2, query_pb2, silo_pb2
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

SIGNATURE = Record(Signature, common_pb2.Signature, key=HASH, signature=Bytes(64, 64))
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
    blob=HASH,
    size=Int(1, MAXIMUM_BLOB),
    offset=Int(0, MAXIMUM_BLOB),
    data=Bytes(1, CHUNK_BYTES),
    digest=HASH,
    sound=_chunk_sound,
)
FETCH = Record(m.Fetch, common_pb2.FetchRequest, blob=HASH, offset=Int(0, MAXIMUM_BLOB))
UPLOAD_RECEIPT = Record(m.UploadReceipt, silo_pb2.UploadReceipt, blob=HASH, held=Int(0, MAXIMUM_BLOB), complete=Flag())
HELLO_REQUEST = Record(m.HelloRequest, common_pb2.HelloRequest, software=SHORT)
HELLO = Record(m.Hello, common_pb2.HelloReply, software=SHORT, federation=NAME, time_ms=SIZE, roster=_SIGNED)


@dataclass(frozen=True, slots=True)
class _Witnessed:
    silo: SiloId
    size: int


class _WitnessedPair:
    """(silo, ledger size) pairs are plain tuples in Ready."""

    native = tuple
    record = Record(_Witnessed, silo_pb2.Witnessed, silo=NAME, size=SIZE)

    def to_wire(self, value: tuple[SiloId, int]) -> Any:
        return self.record.to_wire(_Witnessed(*value))

    def from_wire(self, message: Any) -> tuple[SiloId, int]:
        pair = self.record.from_wire(message)
        return pair.silo, pair.size


READY = Record(
    m.Ready,
    silo_pb2.Ready,
    boot=Bytes(16, 16),
    plan=HASH_OR_EMPTY,
    round=ROUND,
    model=HASH_OR_EMPTY,
    witnessed=Many(_WitnessedPair(), MAXIMUM_SILOS, distinct=lambda pair: pair[0]),
    roster=HASH,
)


def _plan_answer_sound(answer: m.PlanAnswer) -> str | None:
    return "needs a reason exactly when it declines" if answer.accepted == (answer.reason is not None) else None


PLAN_ANSWER = Record(
    m.PlanAnswer,
    silo_pb2.PlanAnswer,
    plan=HASH,
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
    round=ROUND,
    acks=Many(SIGNED, MAXIMUM_SILOS),
    sum=HASH_OR_EMPTY,
    lost=One(SIGNED, or_none=True),
    sound=_outcome_sound,
)
ANNOUNCE = Record(
    m.Announce,
    silo_pb2.Announce,
    frame=One(FRAME),
    abort_certificate=_FRAMES,
    previous=One(ROUND_OUTCOME, or_none=True),
    witnessed=Many(SIZE, MAXIMUM_SILOS),
)
STEP_FRAMES = Record(m.StepFrames, silo_pb2.Step, session=HASH, step=Int(min(Step), max(Step)), frames=_FRAMES)
PUBLISH = Record(m.Publish, silo_pb2.Publish, frame=One(FRAME), sum=HASH)
ABORT_REQUEST = Record(m.AbortRequest, silo_pb2.AbortRequest, session=HASH, reason=LONG)
RELEASE_PROPOSAL = Record(m.ReleaseProposal, silo_pb2.ReleaseProposal, statement=Bytes(1, MAXIMUM_BODY))
JOB_ENDED = Record(m.JobEnded, silo_pb2.JobEnded, plan=HASH, reason=LONG, completed=Flag())
NOTICE = Record(m.Notice, silo_pb2.Notice, text=LONG)
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


CAPACITY = Record(q.Capacity, silo_pb2.Capacity, capacity=Int(0, 100_000), release=HASH)
ANSWER = Record(
    q.Answer,
    silo_pb2.Answer,
    query=HASH,
    answer=Bytes(0, MAXIMUM_SEALED),
    refusal=REFUSAL,
    sound=_answer_sound,
)
SERVE_EVENT: OneOf[q.ServeEvent] = OneOf(silo_pb2.ServeEvent, capacity=CAPACITY, answer=ANSWER)
SEALED_QUERY = Record(
    q.SealedQuery,
    silo_pb2.SealedQuery,
    querier=NAME,
    query=HASH,
    sealed=Bytes(1, MAXIMUM_SEALED),
    ticket=_SIGNED,
)

GET_RELEASE = Record(q.GetRelease, query_pb2.GetReleaseRequest)
QUERIER_RELEASE = Record(q.QuerierRelease, query_pb2.QuerierRelease, plan=_SIGNED, statement=_SIGNED, trunk=HASH)


def _route_request_sound(request: q.RouteRequest) -> str | None:
    lengths = {len(code) for code in request.codes}
    return "holds codes of different lengths" if len(lengths) > 1 else None


ROUTE_REQUEST = Record(
    q.RouteRequest,
    query_pb2.RouteRequest,
    release=HASH,
    codes=Many(Bytes(1, MAXIMUM_CODE), MAXIMUM_ROUTES, minimum=1),
    sound=_route_request_sound,
)
ROUTE = Record(q.Route, query_pb2.Route, silo=NAME, roster_version=VERSION, ticket=_SIGNED)
ROUTE_ROW = Record(
    q.RouteRow, query_pb2.RouteRow, routes=Many(ROUTE, MAXIMUM_OPINIONS, minimum=1, distinct=lambda route: route.silo)
)
ROUTE_REPLY = Record(q.RouteReply, query_pb2.RouteReply, rows=Many(ROUTE_ROW, MAXIMUM_ROUTES, minimum=1))
ASK = Record(q.Ask, query_pb2.AskRequest, silo=NAME, ticket=_SIGNED, sealed=Bytes(1, MAXIMUM_SEALED))
ASK_REPLY = Record(q.AskReply, query_pb2.AskReply, answer=Bytes(1, MAXIMUM_SEALED))
