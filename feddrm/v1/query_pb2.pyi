from feddrm.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetReleaseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QuerierRelease(_message.Message):
    __slots__ = ("plan", "statement", "trunk")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    TRUNK_FIELD_NUMBER: _ClassVar[int]
    plan: _common_pb2.Signed
    statement: _common_pb2.Signed
    trunk: bytes
    def __init__(self, plan: _Optional[_Union[_common_pb2.Signed, _Mapping]] = ..., statement: _Optional[_Union[_common_pb2.Signed, _Mapping]] = ..., trunk: _Optional[bytes] = ...) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ("release", "codes")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    release: bytes
    codes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, release: _Optional[bytes] = ..., codes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RouteReply(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[RouteRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[RouteRow, _Mapping]]] = ...) -> None: ...

class RouteRow(_message.Message):
    __slots__ = ("routes",)
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    def __init__(self, routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("silo", "roster_version", "ticket")
    SILO_FIELD_NUMBER: _ClassVar[int]
    ROSTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    silo: str
    roster_version: int
    ticket: _common_pb2.Signed
    def __init__(self, silo: _Optional[str] = ..., roster_version: _Optional[int] = ..., ticket: _Optional[_Union[_common_pb2.Signed, _Mapping]] = ...) -> None: ...

class AskRequest(_message.Message):
    __slots__ = ("silo", "ticket", "sealed")
    SILO_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    silo: str
    ticket: _common_pb2.Signed
    sealed: bytes
    def __init__(self, silo: _Optional[str] = ..., ticket: _Optional[_Union[_common_pb2.Signed, _Mapping]] = ..., sealed: _Optional[bytes] = ...) -> None: ...

class AskReply(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: bytes
    def __init__(self, answer: _Optional[bytes] = ...) -> None: ...
