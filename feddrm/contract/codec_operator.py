"""Messages of the operator's service, to protobuf and back, under the rules of feddrm.contract.codec."""

from __future__ import annotations

from feddrm.contract import operator_messages as o
from feddrm.contract.codec import SIGNED
from feddrm.contract.codec_fields import (
    COUNT,
    HASH,
    HASH_OR_EMPTY,
    LONG,
    NAME,
    RELEASE_ID,
    ROUND,
    SHORT,
    SIZE,
    STAGE,
    VERSION,
)
from feddrm.contract.codec_kinds import Flag, NameField, Real, Word
from feddrm.contract.codec_records import Many, One, Record
from feddrm.contract.sections import MAXIMUM_SILOS
from feddrm.v1 import operator_pb2

_SIGNED = One(SIGNED)
_SILO_NAMES = Many(NAME, MAXIMUM_SILOS, distinct=str)

ROSTER_RECEIPT = Record(o.RosterReceipt, operator_pb2.RosterReceipt, version=VERSION)
STOP_JOB = Record(o.StopJob, operator_pb2.StopJobRequest, plan=HASH, reason=LONG)
JOB_RECEIPT = Record(o.JobReceipt, operator_pb2.JobReceipt, plan=HASH, state=SHORT)
STATUS_REQUEST = Record(o.StatusRequest, operator_pb2.StatusRequest, plan=HASH_OR_EMPTY)
SILO_STATUS = Record(
    o.SiloStatus,
    operator_pb2.SiloStatus,
    name=NAME,
    connected=Flag(),
    state=LONG,
    rounds_joined=COUNT,
    capacity=COUNT,
)
ROUND_SUMMARY = Record(
    o.RoundSummary,
    operator_pb2.RoundSummary,
    round=ROUND,
    attempt=COUNT,
    outcome=SHORT,
    cohort=_SILO_NAMES,
    survivors=_SILO_NAMES,
    mask_keys_opened=_SILO_NAMES,
    sum=HASH_OR_EMPTY,
    stage=STAGE,
)
FIGURE = Record(o.NamedFigure, operator_pb2.Figure, name=SHORT, value=Real(0.0, 1.0), deviation=Real(0.0, 1e9))
NOISE = Record(
    o.NoiseFound,
    operator_pb2.Noise,
    places=COUNT,
    ratio=Real(0.0, 1e9),
    chance=Real(0.0, 1.0),
    needed=COUNT,
    short=Flag(),
)
STATUS = Record(
    o.Status,
    operator_pb2.StatusReply,
    federation=NAME,
    roster_version=SIZE,
    plan=HASH_OR_EMPTY,
    job=NameField(or_empty=True),
    state=SHORT,
    round=ROUND,
    rounds=ROUND,
    attempt=COUNT,
    step=SHORT,
    waiting_for=_SILO_NAMES,
    silos=Many(SILO_STATUS, MAXIMUM_SILOS, distinct=lambda silo: silo.name),
    history=Many(ROUND_SUMMARY, o.HISTORY_LIMIT),
    detail=LONG,
    release=Word(RELEASE_ID.characters, 0, 16),
    stage=STAGE,
    figures=Many(FIGURE, 16),
    noise=One(NOISE, or_none=True),
)
RELEASE_SUMMARY = Record(
    o.ReleaseSummary,
    operator_pb2.ReleaseSummary,
    id=RELEASE_ID,
    plan=HASH,
    signatures=COUNT,
    threshold=COUNT,
    published=Flag(),
    signed_plan=_SIGNED,
    statement=_SIGNED,
)
RELEASE_LIST = Record(o.ReleaseList, operator_pb2.ReleaseList, releases=Many(RELEASE_SUMMARY, 10_000))
PUBLISH_RELEASE = Record(o.PublishRelease, operator_pb2.PublishReleaseRequest, id=RELEASE_ID)
