"""Every message survives the wire; whatever a hostile peer sends, only MalformedError escapes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from codec_messages import ATTACHED, CONVERTERS, MESSAGES
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from feddrm.contract import codec, codec_operator
from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from feddrm.contract import query_messages as q
from feddrm.contract.codec_records import MAXIMUM_MESSAGE, OneOf, Record
from feddrm.contract.errors import MalformedError
from feddrm.contract.names import SiloId
from feddrm.contract.signed import Signature, Signed
from feddrm.v1 import common_pb2, operator_pb2, query_pb2, silo_pb2
from secagg.dealing import CIPHERTEXT_SIZE
from secagg.wire import MAXIMUM_EVIDENCE, MAXIMUM_PROOF, Frame, Step

pairs = pytest.mark.parametrize(("converter", "values"), MESSAGES, ids=[c.wire.DESCRIPTOR.name for c in CONVERTERS])
some_message = st.sampled_from(MESSAGES).flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1]))


@pairs
@settings(max_examples=25)
@given(data=st.data())
def test_round_trip(converter: Any, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    value = data.draw(values)
    assert converter.decode(converter.encode(value)) == value


def test_every_message_of_the_wire_contract_has_a_converter() -> None:
    reached: set[str] = set()

    def walk(descriptor: Any) -> None:
        if descriptor.name not in reached:
            reached.add(descriptor.name)
            for field in descriptor.fields:
                if field.message_type is not None:
                    walk(field.message_type)

    for converter in CONVERTERS:
        walk(converter.wire.DESCRIPTOR)
    modules = (common_pb2, operator_pb2, query_pb2, silo_pb2)
    assert {name for module in modules for name in module.DESCRIPTOR.message_types_by_name} == reached
    for module in modules:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                for descriptor in (method.input_type, method.output_type):
                    assert descriptor.name in {c.wire.DESCRIPTOR.name for c in CONVERTERS}, descriptor.name


@settings(max_examples=400)
@given(st.sampled_from(CONVERTERS), st.binary(max_size=300))
def test_random_bytes_escape_only_as_malformed(converter: Any, data: bytes) -> None:
    with contextlib.suppress(MalformedError):
        converter.decode(data)


@settings(max_examples=400)
@given(some_message, st.data())
def test_truncated_and_mutated_bytes_escape_only_as_malformed(message: tuple[Any, Any], data: st.DataObject) -> None:
    converter, value = message
    encoded = bytearray(converter.encode(value))
    if encoded:
        for _ in range(data.draw(st.integers(0, 3))):
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    try:
        again = converter.decode(cut)
    except MalformedError:
        return
    assert converter.decode(converter.encode(again)) == again


@settings(max_examples=100)
@given(some_message)
def test_bytes_of_one_message_read_as_another_escape_only_as_malformed(message: tuple[Any, Any]) -> None:
    converter, value = message
    encoded = converter.encode(value)
    for other in CONVERTERS:
        with contextlib.suppress(MalformedError):
            other.decode(encoded)


def unknown_field(number: int = 999) -> bytes:
    return bytes(query_pb2.AskReply().SerializeToString()) + _tag(number, 0) + b"\x01"


def _tag(number: int, wire_type: int) -> bytes:
    value, out = number << 3 | wire_type, b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


@pairs
@settings(max_examples=5)
@given(data=st.data())
def test_an_unknown_field_is_refused(converter: Any, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    with pytest.raises(MalformedError):
        converter.decode(converter.encode(data.draw(values)) + unknown_field())


def test_an_unknown_field_inside_a_nested_message_is_refused() -> None:
    wire = codec.HELLO.to_wire(m.Hello("s", "fed", 1, SIGNED))
    wire.roster.signatures[0].MergeFromString(unknown_field())
    with pytest.raises(MalformedError, match="Signature has an unknown field"):
        codec.HELLO.from_wire(wire)


HASH = bytes(range(32))
SIGNED = Signed(b"body", (Signature(HASH, bytes(64)),))
TWO = q.RouteRow((q.Route(SiloId("a"), 1, SIGNED), q.Route(SiloId("b"), 1, SIGNED)))
FRAME = Frame(1, "hospital-a", b"body", bytes(64))
READY = m.Ready(bytes(16), HASH, 3, HASH, ((SiloId("hospital-b"), 4),), HASH)


def wire_of(converter: Any, value: Any, **changes: Any) -> Message:
    message: Message = converter.to_wire(value)
    for path, change in changes.items():
        *parents, last = path.split("__")
        target: Any = message
        for parent in parents:
            target = getattr(target, parent)
        if change is None:
            target.ClearField(last)
        elif isinstance(change, list):
            target.ClearField(last)
            getattr(target, last).extend(change)
        else:
            setattr(target, last, change)
    return message


REFUSED: list[tuple[Any, Any, dict[str, Any]]] = [
    (codec.READY, READY, {"boot": b""}),
    (codec.READY, READY, {"boot": bytes(17)}),
    (codec.READY, READY, {"plan": bytes(31)}),
    (codec.READY, READY, {"roster": None}),
    (codec.READY, READY, {"round": 10_001}),
    (codec.READY, READY, {"witnessed": [silo_pb2.Witnessed(silo="../etc", size=1)]}),
    (codec.READY, READY, {"witnessed": [silo_pb2.Witnessed(silo="a", size=1)] * 2}),
    (codec.READY, READY, {"witnessed": [silo_pb2.Witnessed(silo="a", size=1 << 63)]}),
    (codec.READY, READY, {"witnessed": [silo_pb2.Witnessed(silo=f"a{i}", size=1) for i in range(101)]}),
    (codec.FRAME, FRAME, {"step": 8}),
    (codec.FRAME, FRAME, {"sender": "Hospital A"}),
    (codec.FRAME, FRAME, {"body": b""}),
    (codec.FRAME, FRAME, {"body": bytes((64 << 10) + 1)}),
    (codec.FRAME, FRAME, {"signature": bytes(63)}),
    (codec.FRAME, FRAME, {"attachment": bytes((1 << 20) + 1)}),
    *((codec.FRAME, FRAME, {"step": int(s), "attachment": b"x"}) for s in Step if s not in ATTACHED),
    (codec.FRAME, FRAME, {"step": int(Step.KEYS), "attachment": bytes(MAXIMUM_PROOF + 1)}),
    (codec.FRAME, FRAME, {"step": int(Step.SHARES), "attachment": bytes(99 * CIPHERTEXT_SIZE + 1)}),
    (codec.FRAME, FRAME, {"step": int(Step.MASKED), "attachment": bytes(m.SMALL_VECTOR + 1)}),
    (codec.FRAME, FRAME, {"step": int(Step.PUBLISH), "attachment": bytes(m.SMALL_VECTOR + 1)}),
    (codec.FRAME, FRAME, {"step": int(Step.ABORT), "attachment": bytes(MAXIMUM_EVIDENCE + 1)}),
    (codec.SIGNED, SIGNED, {"signatures": []}),
    (codec.SIGNED, SIGNED, {"signatures": [common_pb2.Signature(key=HASH, signature=bytes(64))] * 2}),
    (codec.SIGNED, SIGNED, {"body": bytes((8 << 20) + 1)}),
    (codec.HELLO, m.Hello("s", "fed", 1, SIGNED), {"roster": None}),
    (codec.HELLO, m.Hello("s", "fed", 1, SIGNED), {"time_ms": -1}),
    (codec.HELLO, m.Hello("s", "fed", 1, SIGNED), {"software": "a\x1b[2Jb"}),
    (codec.HELLO, m.Hello("s", "fed", 1, SIGNED), {"software": "a" * 129}),
    (codec.CHUNK, m.Chunk(HASH, 10, 0, b"12345", HASH), {"offset": 6}),
    (codec.CHUNK, m.Chunk(HASH, 10, 0, b"12345", HASH), {"data": b""}),
    (codec.CHUNK, m.Chunk(HASH, 1 << 30, 0, b"1", HASH), {"data": bytes((1 << 20) + 1)}),
    (codec.CHUNK, m.Chunk(HASH, 10, 0, b"12345", HASH), {"size": (1 << 64) - 1}),
    (codec.PLAN_ANSWER, m.PlanAnswer(HASH, True), {"reason": 1}),
    (codec.PLAN_ANSWER, m.PlanAnswer(HASH, True), {"accepted": False}),
    (codec.PLAN_ANSWER, m.PlanAnswer(HASH, False, m.DeclineReason.DATA), {"reason": 77}),
    (codec.ROUND_OUTCOME, m.RoundOutcome(1, (SIGNED,), HASH), {"sum": b""}),
    (codec.ROUND_OUTCOME, m.RoundOutcome(1, (SIGNED,), HASH), {"acks": []}),
    (codec.ROUND_OUTCOME, m.RoundOutcome(1, lost=SIGNED), {"lost": None}),
    (codec.ROUND_OUTCOME, m.RoundOutcome(1, lost=SIGNED), {"sum": HASH}),
    (codec.ROUTE_REQUEST, q.RouteRequest(HASH, (bytes(3),)), {"codes": []}),
    (codec.ROUTE_REQUEST, q.RouteRequest(HASH, (bytes(3),)), {"codes": [b""]}),
    (codec.ROUTE_REQUEST, q.RouteRequest(HASH, (bytes(3),)), {"codes": [bytes(codec.MAXIMUM_CODE + 1)]}),
    (codec.ROUTE_REQUEST, q.RouteRequest(HASH, (bytes(3),)), {"codes": [bytes(3), bytes(4)]}),
    (codec.ROUTE_REQUEST, q.RouteRequest(HASH, (bytes(3),)), {"codes": [bytes(3)] * (codec.MAXIMUM_ROUTES + 1)}),
    (codec.ROUTE, q.Route(SiloId("a"), 1, SIGNED), {"roster_version": 0}),
    (codec.ROUTE_ROW, TWO, {"routes": []}),
    (codec.ROUTE_ROW, TWO, {"routes": [codec.ROUTE.to_wire(TWO.routes[0])] * 2}),
    (codec.ROUTE_ROW, TWO, {"routes": [codec.ROUTE.to_wire(q.Route(SiloId(name), 1, SIGNED)) for name in "abc"]}),
    (codec.ROUTE_REPLY, q.RouteReply((TWO,)), {"rows": []}),
    (codec.ANSWER, q.Answer(HASH, b"x"), {"refusal": "busy"}),
    (codec.ANSWER, q.Answer(HASH, b"x"), {"answer": b""}),
    (codec.ANSWER, q.Answer(HASH, refusal="busy"), {"refusal": "score 0.93"}),
    (codec_operator.PUBLISH_RELEASE, o.PublishRelease("0123456789abcdef"), {"id": "../../etc/passwd"}),
]


@pytest.mark.parametrize(("converter", "value", "changes"), REFUSED)
def test_what_a_peer_may_not_send_is_refused(converter: Any, value: Any, changes: dict[str, Any]) -> None:
    assert converter.decode(converter.encode(value)) == value
    with pytest.raises(MalformedError):
        converter.from_wire(wire_of(converter, value, **changes))


def test_what_we_would_send_wrongly_is_our_own_bug() -> None:
    with pytest.raises(ValueError, match=r"Ready\.boot has 3 bytes"):
        codec.READY.to_wire(m.Ready(b"abc", HASH, 1, HASH, (), HASH))
    with pytest.raises(ValueError, match="either published"):
        codec.ROUND_OUTCOME.to_wire(m.RoundOutcome(1))
    with pytest.raises(ValueError, match="is missing"):
        codec.HELLO.to_wire(m.Hello("s", "fed", 1, None))  # type: ignore[arg-type]


def test_sentences_are_cleaned_on_the_way_out() -> None:
    notice = codec.NOTICE.decode(codec.NOTICE.encode(m.Notice("one\ntwo\x1b\ud800" + "x" * 3000)))
    assert notice.text.startswith("one two  xxx")
    assert len(notice.text) == 2000


def test_an_empty_event_is_refused() -> None:
    for converter in (codec.SILO_EVENT, codec.COORDINATOR_EVENT, codec.SERVE_EVENT):
        with pytest.raises(MalformedError, match="holds nothing"):
            converter.decode(b"")


def test_an_oversized_message_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(MalformedError, match="exceeds the limit"):
        codec.SILO_EVENT.decode(bytes(MAXIMUM_MESSAGE + 1))


def test_a_field_without_a_kind_stops_the_import() -> None:
    with pytest.raises(TypeError):
        Record(m.Fetch, common_pb2.FetchRequest, blob=codec.FETCH.kinds["blob"])
    with pytest.raises(TypeError):
        OneOf(silo_pb2.ServeEvent, capacity=codec.CAPACITY)
