"""Failures of other systems' masked vectors, each as the attack that it allowed; see test_peers_failures."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from numpy.typing import NDArray
from secagg_attacker import Vector, small
from secagg_harness import Federation, at, stream

from feddrm.contract.release import Statement
from feddrm.contract.rounds import Ack, Lost
from feddrm.v1 import common_pb2, silo_pb2
from secagg.bodies import Masked
from secagg.client import join
from secagg.errors import Failed, MisuseError, UnsoundError
from secagg.hashing import blob_hash
from secagg.masks import Keystream
from secagg.session import RING_BOUND, WORD64_BOUND
from secagg.wire import Frame, Step


def words32(federation: Federation, frame: Frame) -> Vector:
    return np.frombuffer(frame.attachment, dtype="<u4", count=federation.words32)


# Sample counts beside masked vectors


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def encodings(count: int) -> list[bytes]:
    """How a count may stand in a message: text, varint, integers and floats of either byte order."""
    packed = [struct.pack(f"{order}{kind}", count) for order in "<>" for kind in "iqfd"]
    return [str(count).encode(), varint(count), *packed]


def finds(count: int, traffic: bytes) -> bool:
    return any(encoding in traffic for encoding in encodings(count))


class Counting(Federation):
    """Silos that sum their numbers of patients in the words64 segment."""

    def count(self, name: str) -> int:
        return 1_234_567 + 1_000_003 * self.names.index(name)

    def words(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return super().words(name)[0], np.array([self.count(name), 0], dtype=np.int64)


def test_no_sample_count_travels_beside_a_masked_vector() -> None:
    """Frameworks weight by sample counts, and send each count in clear beside the vector that they mask.

    It exposes how many patients a hospital has, and from round to round how many it gained. Here counts are summed in a
    masked segment of their own: no message of a silo holds one in any encoding, and only their total comes out.
    """
    federation = Counting(words64=2)
    session = federation.start().run(Step.UNMASK, lost={Step.MASKED: {"silo-4"}})
    for step, sent in session.sent.items():
        for frame in sent.values():
            traffic = frame.sender.encode() + frame.body + frame.signature + frame.attachment
            assert not [name for name in federation.names if finds(federation.count(name), traffic)], step
    for name in federation.names:
        body = session.sent[Step.KEYS][name].body
        for encoding in encodings(federation.count(name)):
            assert finds(federation.count(name), body + b"\x18" + encoding)
    assert int(session.published.words64[0]) == sum(federation.count(name) for name in federation.names[:4])


def numbers(message: Descriptor, seen: set[str]) -> set[str]:
    """All numeric fields that a message can carry, as Message.field."""
    if message.full_name in seen:
        return set()
    seen.add(message.full_name)
    found = set()
    kinds = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_BOOL, FieldDescriptor.CPPTYPE_ENUM)
    for field in message.fields:
        if field.message_type is not None:
            found |= numbers(field.message_type, seen)
        elif field.cpp_type not in kinds:
            found.add(f"{message.name}.{field.name}")
    return found


def test_no_message_of_a_silo_has_a_field_for_a_count() -> None:
    """The same failure in the contract around the protocol: each number that a silo can say, and what it is.

    A new numeric field fails here, until somebody has thought about what it tells.
    """
    seen: set[str] = set()
    sent = numbers(silo_pb2.SiloEvent.DESCRIPTOR, seen) | numbers(silo_pb2.ServeEvent.DESCRIPTOR, seen)
    sent |= numbers(common_pb2.Chunk.DESCRIPTOR, seen)
    assert sent == {
        "Frame.step",
        "Ready.round",  # the next round it wants
        "Witnessed.size",  # leaves of a peer's ledger
        "Capacity.capacity",  # questions at a time
        "Chunk.size",  # of an upload, which the plan fixes
        "Chunk.offset",
    }
    signed = {
        f"{document.__name__}.{name}"
        for document in (Ack, Lost, Statement)
        for name, field in document.model_fields.items()
        if field.annotation in (int, float)
    }
    places = {"Ack.stage", "Ack.round", "Lost.stage", "Lost.round", "Statement.rounds", "Statement.roster_version"}
    # The number of silos in a sum, and of sums that were published for the routing fit.
    assert signed == {"Ack.count", "Statement.sums"} | places


# One number masks a whole vector


def differences_leak(masked: Vector, bound: int) -> bool:
    """Whether differences of neighbouring entries are as small as an update's."""
    return small(np.diff(masked), 2 * bound)


def test_every_entry_has_its_own_mask() -> None:
    """Toy protocols add one random number to a whole vector.

    It exposes the vector up to a constant: differences of entries are those of the update.
    """
    federation = Federation(words32=64, words64=16)
    session = federation.start().run(Step.MASKED)
    bound = session.announcement.value_bound
    update = federation.words("silo-3")[0].astype(np.uint32)
    broken = update + Keystream(b"k" * 32).words(1, "<u4")[0]
    assert differences_leak(broken, bound)
    np.testing.assert_array_equal(np.diff(broken), np.diff(update))
    for name, frame in session.sent[Step.MASKED].items():
        masked = words32(federation, frame)
        assert not differences_leak(masked, bound)
        steps = np.diff(masked - federation.words(name)[0].astype(np.uint32))
        assert len(set(steps.tolist())) == 63
        large = np.frombuffer(frame.attachment, dtype="<u8", offset=4 * 64)
        assert len(set(large.tolist())) == len(large)
        # Nor does one segment's mask return in the other's.
        low = (large & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        assert not differences_leak(masked[: len(low)] - low, bound)


# One mask for all rounds


class Forgetful(Federation):
    """Silos whose random source repeats itself in every session, as that of a machine put back from a copy does."""

    def join(self, name: str, announce: Frame, salt: object = 0) -> tuple[Any, Frame]:
        return join(
            announce,
            server_key=self.server_key,
            members=self.members,
            me=name,
            signer=self.identity[name],
            entropy=stream("forgetful", name),
            ledger_proof=b"proof",
        )


def test_no_mask_serves_two_rounds() -> None:
    """Systems agree on masks once, in a set-up, and add the same ones in every round.

    It exposes how a silo's update changes: the difference of two masked vectors is that of the updates. Here masks are
    bound to the session, and do not repeat even for silos whose random source does.
    """
    federation = Forgetful(words32=32)
    rounds = [federation.start(round=number).run(Step.MASKED) for number in (1, 2)]
    rounds.append(federation.start(round=1, attempt=2).run(Step.MASKED))
    rounds.append(federation.start(round=1, nonce=b"n" * 32).run(Step.MASKED))
    bound = rounds[0].announcement.value_bound
    for name in federation.names:
        update = federation.words(name)[0].astype(np.uint32)
        once = Keystream(hashlib.sha256(name.encode()).digest()).words(32, "<u4")
        assert small((update * 3 + once) - (update + once), 2 * bound)
        masked = [words32(federation, session.sent[Step.MASKED][name]) for session in rounds]
        streams = [vector - update for vector in masked]
        assert len({stream.tobytes() for stream in streams}) == 4
        for one, other in pairwise(masked):
            assert not small(other - one, 2 * bound)
            assert not small(other + one, 2 * bound)


# Sums that wrap silently


def test_a_sum_that_could_wrap_is_refused_and_one_that_cannot_is_exact() -> None:
    """Frameworks add quantised updates in a 32-bit ring and hope, or warn.

    It exposes the model: one sum past the ring gives a plausible, wrong update with its sign turned, and nobody knows.
    """
    bound = RING_BOUND // 2
    naive = np.full(5, bound, dtype=np.uint32).sum(dtype=np.uint32)
    assert int(naive.view(np.int32)) < 0 < 5 * bound
    assert abs(int(naive.view(np.int32))) < 5 * bound

    class Extreme(Federation):
        sign = 1

        def words(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            small, large = np.full(7, self.sign * most, np.int64), np.full(2, self.sign * WORD64_BOUND, np.int64)
            return small, large

    federation = Extreme()
    for refused in (bound, RING_BOUND, RING_BOUND // 5, 2**32 - 1):
        with pytest.raises(UnsoundError, match="wrap"):
            federation.announcement(value_bound=refused)
    most = (RING_BOUND - 1) // 5 - 1
    for federation.sign in (1, -1):
        published = federation.start(value_bound=most).run().published
        assert published.words32.tolist() == [federation.sign * 5 * most] * 7
        assert published.words64.tolist() == [federation.sign * 5 * WORD64_BOUND] * 2
    federation.sign = 2
    with pytest.raises(MisuseError, match="outside"):
        federation.start(value_bound=most).run()


def test_a_silo_that_ignores_its_bound_yields_no_sum_instead_of_a_wrapped_one(federation: Federation) -> None:
    session = at(federation, Step.MASKED)
    frame = session.respond(Step.MASKED, "silo-1")
    pushed = (int.from_bytes(frame.attachment[:4], "little") + (1 << 31)) % (1 << 32)
    vector = pushed.to_bytes(4, "little") + frame.attachment[4:]
    body = replace(Masked.decode(frame.body), vector=blob_hash(vector))
    session.sent[Step.MASKED]["silo-1"] = federation.sign("silo-1", body, vector)
    session.advance(Step.MASKED)
    session.advance(Step.CONSISTENCY, {"silo-1"})
    session.collect(Step.UNMASK)
    with pytest.raises(Failed, match="range"):
        session.server.close()
