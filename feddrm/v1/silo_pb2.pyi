from feddrm.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeclineReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECLINE_REASON_UNSPECIFIED: _ClassVar[DeclineReason]
    DECLINE_REASON_POLICY: _ClassVar[DeclineReason]
    DECLINE_REASON_BUDGET: _ClassVar[DeclineReason]
    DECLINE_REASON_ROSTER: _ClassVar[DeclineReason]
    DECLINE_REASON_DATA: _ClassVar[DeclineReason]
    DECLINE_REASON_BUSY: _ClassVar[DeclineReason]
    DECLINE_REASON_LEDGER: _ClassVar[DeclineReason]
DECLINE_REASON_UNSPECIFIED: DeclineReason
DECLINE_REASON_POLICY: DeclineReason
DECLINE_REASON_BUDGET: DeclineReason
DECLINE_REASON_ROSTER: DeclineReason
DECLINE_REASON_DATA: DeclineReason
DECLINE_REASON_BUSY: DeclineReason
DECLINE_REASON_LEDGER: DeclineReason

class UploadReceipt(_message.Message):
    __slots__ = ("blob", "held", "complete")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    blob: bytes
    held: int
    complete: bool
    def __init__(self, blob: _Optional[bytes] = ..., held: _Optional[int] = ..., complete: bool = ...) -> None: ...

class SiloEvent(_message.Message):
    __slots__ = ("ready", "plan_answer", "frame", "ack", "release_signature")
    READY_FIELD_NUMBER: _ClassVar[int]
    PLAN_ANSWER_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    RELEASE_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ready: Ready
    plan_answer: PlanAnswer
    frame: _common_pb2.Frame
    ack: _common_pb2.Signed
    release_signature: _common_pb2.Signed
    def __init__(self, ready: _Optional[_Union[Ready, _Mapping]] = ..., plan_answer: _Optional[_Union[PlanAnswer, _Mapping]] = ..., frame: _Optional[_Union[_common_pb2.Frame, _Mapping]] = ..., ack: _Optional[_Union[_common_pb2.Signed, _Mapping]] = ..., release_signature: _Optional[_Union[_common_pb2.Signed, _Mapping]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("boot", "plan", "round", "model", "witnessed", "roster")
    BOOT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WITNESSED_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    boot: bytes
    plan: bytes
    round: int
    model: bytes
    witnessed: _containers.RepeatedCompositeFieldContainer[Witnessed]
    roster: bytes
    def __init__(self, boot: _Optional[bytes] = ..., plan: _Optional[bytes] = ..., round: _Optional[int] = ..., model: _Optional[bytes] = ..., witnessed: _Optional[_Iterable[_Union[Witnessed, _Mapping]]] = ..., roster: _Optional[bytes] = ...) -> None: ...

class Witnessed(_message.Message):
    __slots__ = ("silo", "size")
    SILO_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    silo: str
    size: int
    def __init__(self, silo: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class PlanAnswer(_message.Message):
    __slots__ = ("plan", "accepted", "reason")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    accepted: bool
    reason: DeclineReason
    def __init__(self, plan: _Optional[bytes] = ..., accepted: bool = ..., reason: _Optional[_Union[DeclineReason, str]] = ...) -> None: ...

class CoordinatorEvent(_message.Message):
    __slots__ = ("job_offer", "announce", "step", "publish", "abort_request", "outcome", "release_proposal", "job_ended", "notice", "roster")
    JOB_OFFER_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    ABORT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    RELEASE_PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    JOB_ENDED_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    job_offer: _common_pb2.Signed
    announce: Announce
    step: Step
    publish: Publish
    abort_request: AbortRequest
    outcome: RoundOutcome
    release_proposal: ReleaseProposal
    job_ended: JobEnded
    notice: Notice
    roster: _common_pb2.Signed
    def __init__(self, job_offer: _Optional[_Union[_common_pb2.Signed, _Mapping]] = ..., announce: _Optional[_Union[Announce, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., publish: _Optional[_Union[Publish, _Mapping]] = ..., abort_request: _Optional[_Union[AbortRequest, _Mapping]] = ..., outcome: _Optional[_Union[RoundOutcome, _Mapping]] = ..., release_proposal: _Optional[_Union[ReleaseProposal, _Mapping]] = ..., job_ended: _Optional[_Union[JobEnded, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., roster: _Optional[_Union[_common_pb2.Signed, _Mapping]] = ...) -> None: ...

class Announce(_message.Message):
    __slots__ = ("frame", "abort_certificate", "previous", "witnessed")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    ABORT_CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    WITNESSED_FIELD_NUMBER: _ClassVar[int]
    frame: _common_pb2.Frame
    abort_certificate: _containers.RepeatedCompositeFieldContainer[_common_pb2.Frame]
    previous: RoundOutcome
    witnessed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, frame: _Optional[_Union[_common_pb2.Frame, _Mapping]] = ..., abort_certificate: _Optional[_Iterable[_Union[_common_pb2.Frame, _Mapping]]] = ..., previous: _Optional[_Union[RoundOutcome, _Mapping]] = ..., witnessed: _Optional[_Iterable[int]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("session", "step", "frames")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    step: int
    frames: _containers.RepeatedCompositeFieldContainer[_common_pb2.Frame]
    def __init__(self, session: _Optional[bytes] = ..., step: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[_common_pb2.Frame, _Mapping]]] = ...) -> None: ...

class Publish(_message.Message):
    __slots__ = ("frame", "sum")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    frame: _common_pb2.Frame
    sum: bytes
    def __init__(self, frame: _Optional[_Union[_common_pb2.Frame, _Mapping]] = ..., sum: _Optional[bytes] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("session", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    reason: str
    def __init__(self, session: _Optional[bytes] = ..., reason: _Optional[str] = ...) -> None: ...

class RoundOutcome(_message.Message):
    __slots__ = ("round", "acks", "sum", "lost")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    round: int
    acks: _containers.RepeatedCompositeFieldContainer[_common_pb2.Signed]
    sum: bytes
    lost: _common_pb2.Signed
    def __init__(self, round: _Optional[int] = ..., acks: _Optional[_Iterable[_Union[_common_pb2.Signed, _Mapping]]] = ..., sum: _Optional[bytes] = ..., lost: _Optional[_Union[_common_pb2.Signed, _Mapping]] = ...) -> None: ...

class ReleaseProposal(_message.Message):
    __slots__ = ("statement",)
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    def __init__(self, statement: _Optional[bytes] = ...) -> None: ...

class JobEnded(_message.Message):
    __slots__ = ("plan", "reason", "completed")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    reason: str
    completed: bool
    def __init__(self, plan: _Optional[bytes] = ..., reason: _Optional[str] = ..., completed: bool = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class ServeEvent(_message.Message):
    __slots__ = ("capacity", "answer")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    capacity: Capacity
    answer: Answer
    def __init__(self, capacity: _Optional[_Union[Capacity, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ...) -> None: ...

class Capacity(_message.Message):
    __slots__ = ("capacity", "release")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    capacity: int
    release: bytes
    def __init__(self, capacity: _Optional[int] = ..., release: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("query", "answer", "refusal")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    query: bytes
    answer: bytes
    refusal: str
    def __init__(self, query: _Optional[bytes] = ..., answer: _Optional[bytes] = ..., refusal: _Optional[str] = ...) -> None: ...

class SealedQuery(_message.Message):
    __slots__ = ("querier", "query", "sealed", "ticket")
    QUERIER_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    querier: str
    query: bytes
    sealed: bytes
    ticket: _common_pb2.Signed
    def __init__(self, querier: _Optional[str] = ..., query: _Optional[bytes] = ..., sealed: _Optional[bytes] = ..., ticket: _Optional[_Union[_common_pb2.Signed, _Mapping]] = ...) -> None: ...
