from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Signed(_message.Message):
    __slots__ = ("body", "signatures")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    signatures: _containers.RepeatedCompositeFieldContainer[Signature]
    def __init__(self, body: _Optional[bytes] = ..., signatures: _Optional[_Iterable[_Union[Signature, _Mapping]]] = ...) -> None: ...

class Signature(_message.Message):
    __slots__ = ("key", "signature")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    signature: bytes
    def __init__(self, key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("step", "sender", "body", "signature", "attachment")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    step: int
    sender: str
    body: bytes
    signature: bytes
    attachment: bytes
    def __init__(self, step: _Optional[int] = ..., sender: _Optional[str] = ..., body: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("blob", "size", "offset", "data", "digest")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    blob: bytes
    size: int
    offset: int
    data: bytes
    digest: bytes
    def __init__(self, blob: _Optional[bytes] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., digest: _Optional[bytes] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("blob", "offset")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    blob: bytes
    offset: int
    def __init__(self, blob: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("software",)
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    software: str
    def __init__(self, software: _Optional[str] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("software", "federation", "time_ms", "roster")
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    software: str
    federation: str
    time_ms: int
    roster: Signed
    def __init__(self, software: _Optional[str] = ..., federation: _Optional[str] = ..., time_ms: _Optional[int] = ..., roster: _Optional[_Union[Signed, _Mapping]] = ...) -> None: ...
