from feddrm.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RosterReceipt(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class StopJobRequest(_message.Message):
    __slots__ = ("plan", "reason")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    reason: str
    def __init__(self, plan: _Optional[bytes] = ..., reason: _Optional[str] = ...) -> None: ...

class JobReceipt(_message.Message):
    __slots__ = ("plan", "state")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    state: str
    def __init__(self, plan: _Optional[bytes] = ..., state: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    def __init__(self, plan: _Optional[bytes] = ...) -> None: ...

class SiloStatus(_message.Message):
    __slots__ = ("name", "connected", "state", "rounds_joined", "capacity")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_JOINED_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    connected: bool
    state: str
    rounds_joined: int
    capacity: int
    def __init__(self, name: _Optional[str] = ..., connected: bool = ..., state: _Optional[str] = ..., rounds_joined: _Optional[int] = ..., capacity: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("federation", "roster_version", "plan", "job", "state", "round", "rounds", "attempt", "step", "waiting_for", "silos", "history", "detail", "release", "stage", "figures", "noise")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    ROSTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    SILOS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    federation: str
    roster_version: int
    plan: bytes
    job: str
    state: str
    round: int
    rounds: int
    attempt: int
    step: str
    waiting_for: _containers.RepeatedScalarFieldContainer[str]
    silos: _containers.RepeatedCompositeFieldContainer[SiloStatus]
    history: _containers.RepeatedCompositeFieldContainer[RoundSummary]
    detail: str
    release: str
    stage: int
    figures: _containers.RepeatedCompositeFieldContainer[Figure]
    noise: Noise
    def __init__(self, federation: _Optional[str] = ..., roster_version: _Optional[int] = ..., plan: _Optional[bytes] = ..., job: _Optional[str] = ..., state: _Optional[str] = ..., round: _Optional[int] = ..., rounds: _Optional[int] = ..., attempt: _Optional[int] = ..., step: _Optional[str] = ..., waiting_for: _Optional[_Iterable[str]] = ..., silos: _Optional[_Iterable[_Union[SiloStatus, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[RoundSummary, _Mapping]]] = ..., detail: _Optional[str] = ..., release: _Optional[str] = ..., stage: _Optional[int] = ..., figures: _Optional[_Iterable[_Union[Figure, _Mapping]]] = ..., noise: _Optional[_Union[Noise, _Mapping]] = ...) -> None: ...

class Noise(_message.Message):
    __slots__ = ("places", "ratio", "chance", "needed", "short")
    PLACES_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    CHANCE_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    SHORT_FIELD_NUMBER: _ClassVar[int]
    places: int
    ratio: float
    chance: float
    needed: int
    short: bool
    def __init__(self, places: _Optional[int] = ..., ratio: _Optional[float] = ..., chance: _Optional[float] = ..., needed: _Optional[int] = ..., short: bool = ...) -> None: ...

class Figure(_message.Message):
    __slots__ = ("name", "value", "deviation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    deviation: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., deviation: _Optional[float] = ...) -> None: ...

class RoundSummary(_message.Message):
    __slots__ = ("round", "attempt", "outcome", "cohort", "survivors", "mask_keys_opened", "sum", "stage")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    MASK_KEYS_OPENED_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    outcome: str
    cohort: _containers.RepeatedScalarFieldContainer[str]
    survivors: _containers.RepeatedScalarFieldContainer[str]
    mask_keys_opened: _containers.RepeatedScalarFieldContainer[str]
    sum: bytes
    stage: int
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., outcome: _Optional[str] = ..., cohort: _Optional[_Iterable[str]] = ..., survivors: _Optional[_Iterable[str]] = ..., mask_keys_opened: _Optional[_Iterable[str]] = ..., sum: _Optional[bytes] = ..., stage: _Optional[int] = ...) -> None: ...

class ReleaseSummary(_message.Message):
    __slots__ = ("id", "plan", "signatures", "threshold", "published", "signed_plan", "statement")
    ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    SIGNED_PLAN_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    id: str
    plan: bytes
    signatures: int
    threshold: int
    published: bool
    signed_plan: _common_pb2.Signed
    statement: _common_pb2.Signed
    def __init__(self, id: _Optional[str] = ..., plan: _Optional[bytes] = ..., signatures: _Optional[int] = ..., threshold: _Optional[int] = ..., published: bool = ..., signed_plan: _Optional[_Union[_common_pb2.Signed, _Mapping]] = ..., statement: _Optional[_Union[_common_pb2.Signed, _Mapping]] = ...) -> None: ...

class ReleaseList(_message.Message):
    __slots__ = ("releases",)
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    releases: _containers.RepeatedCompositeFieldContainer[ReleaseSummary]
    def __init__(self, releases: _Optional[_Iterable[_Union[ReleaseSummary, _Mapping]]] = ...) -> None: ...

class PublishReleaseRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...
