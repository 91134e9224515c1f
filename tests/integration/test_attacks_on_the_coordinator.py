"""A hostile silo with an enrolled silo's real keys, over gRPC with mutual TLS against the real coordinator process.

Its honest half is the same small silo as everybody's; what it sends is twisted on the way out. One coordinator serves
all tests, each of which runs a job of its own.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from coordinator_process import SILOS, Agent, House, Upload, found, serving, status_of
from hostile_silo import BAD, REST, Twist, flipped, frames, listening, play, resigned, twin_keys

from feddrm.contract import codec
from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from feddrm.contract.chunks import iter_chunks
from feddrm.contract.errors import NotAuthorisedError
from feddrm.transport.client import make_channel, translated
from feddrm.v1 import silo_pb2_grpc
from secagg.bodies import Abort, Masked, Shares, Unmask
from secagg.exhibits import Complaint, Conflict, decode_exhibit
from secagg.hashing import blob_hash
from secagg.wire import Frame, Step


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = found(tmp_path_factory.mktemp("federation"))
    with serving(house):
        yield house


def test_two_r1_of_one_silo_convict_it(house: House) -> None:
    """Whether the second comes in time or after the step is over."""

    def hostile(agent: Agent) -> None:
        listening(agent)
        frames(agent, Step.KEYS, twin_keys(agent))

    run = play(house, hostile)
    (summary,) = run.status.history
    assert (summary.outcome, summary.survivors) == ("published", REST)
    assert run.names(BAD)
    assert isinstance(decode_exhibit(next(iter(run.evidence.values()))), Conflict)


EVERY = (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY, Step.UNMASK)
WAYS: dict[str, Callable[[Agent], Twist]] = {
    "no signature": lambda _: lambda frame: [replace(frame, signature=bytes(64))],
    "altered": lambda _: lambda frame: [replace(frame, body=flipped(frame.body))],
    "malformed": lambda agent: lambda frame: [resigned(agent, frame, frame.body + b"\0")],
    "in another's name": lambda _: lambda frame: [replace(frame, sender=SILOS[0])],
}


@pytest.mark.parametrize(("step", "how"), list(zip(EVERY, [*WAYS, "malformed"], strict=True)))
def test_bad_frames_cost_their_sender_the_round_and_are_named(house: House, step: Step, how: str) -> None:
    run = play(house, lambda agent: frames(agent, step, WAYS[how](agent)))
    (summary,) = run.status.history
    assert (summary.outcome, summary.attempt) == ("published", 1)
    assert summary.survivors == (SILOS if step in (Step.CONSISTENCY, Step.UNMASK) else REST)
    assert run.names(BAD)
    # What it signed convicts it before anybody; what it did not sign is known to this coordinator only.
    assert bool(run.evidence) == (how == "malformed")


def test_a_second_fault_lasts_for_the_job(house: House) -> None:
    run = play(house, lambda agent: frames(agent, Step.MASKED, WAYS["malformed"](agent)), rounds=3)
    assert [(h.outcome, h.survivors) for h in run.status.history] == [("published", REST)] * 3
    assert [BAD in h.cohort for h in run.status.history] == [True, True, False]
    assert any(f"{BAD} is left out for the rest of the job" in text for text in run.journal)


def garbage(agent: Agent, victims: tuple[str, ...]) -> Twist:
    """R2 in which what is dealt to some does not open, signed as it is."""

    def twist(frame: Frame) -> list[Frame]:
        body = Shares.decode(frame.body)
        others = [name for name in SILOS if name != agent.name]
        size = len(frame.attachment) // len(others)
        pieces = [frame.attachment[i * size : (i + 1) * size] for i in range(len(others))]
        dealt = list(body.dealt)
        for victim in victims:
            junk = secrets.token_bytes(size)
            pieces[others.index(victim)] = junk
            dealt[SILOS.index(victim)] = replace(dealt[SILOS.index(victim)], ciphertext=blob_hash(junk))
        bad = resigned(agent, frame, replace(body, dealt=tuple(dealt)).encode(), b"".join(pieces))
        goes_on_as_if_it_had_sent(agent, bad)
        return [bad]

    return twist


def goes_on_as_if_it_had_sent(agent: Agent, frame: Frame) -> None:
    state: Any = agent.silo.state
    state._data = replace(state._data, sent=frame)


def test_garbage_shares_for_everybody_end_the_attempt_and_the_next_goes_on_without_their_dealer(house: House) -> None:
    run = play(house, lambda agent: frames(agent, Step.SHARES, garbage(agent, REST)))
    (summary,) = run.status.history
    assert (summary.outcome, summary.survivors, summary.cohort) == ("published", REST, REST)
    assert summary.attempt == 2
    accusations = [codec.FRAME.decode(data) for data in run.evidence.values()]
    assert {(Abort.decode(f.body).blamed, f.sender) for f in accusations} == {(BAD, name) for name in REST}


def test_garbage_shares_for_one_victim_cost_their_dealer_the_next_round_and_not_the_victim(house: House) -> None:
    """The private key of one pair, which the victim reveals, lets anybody decrypt what the dealer signed."""
    run = play(house, lambda agent: frames(agent, Step.SHARES, garbage(agent, REST[:1])), rounds=2)
    first, second = run.status.history
    assert (first.outcome, first.survivors) == ("published", SILOS[1:])
    assert (second.outcome, second.survivors, second.cohort) == ("published", REST, REST)
    (accusation,) = [codec.FRAME.decode(data) for data in run.evidence.values()]
    assert (accusation.sender, Abort.decode(accusation.body).blamed) == (REST[0], BAD)
    assert isinstance(decode_exhibit(accusation.attachment), Complaint)
    assert any(f"{BAD} is left out: dealt" in text for text in run.journal)


@pytest.mark.parametrize("how", ["altered", "truncated", "of another silo"])
def test_bad_shares_at_unmasking_are_named_and_the_others_suffice(house: House, how: str) -> None:
    def twist(agent: Agent) -> Twist:
        def change(frame: Frame) -> list[Frame]:
            body = Unmask.decode(frame.body)
            first, second, *rest = body.openings
            openings = {
                "altered": (replace(first, share=flipped(first.share)), second, *rest),
                "truncated": (first, *rest),
                "of another silo": (second, first, *rest),
            }[how]
            return [resigned(agent, frame, replace(body, openings=openings).encode())]

        return change

    run = play(house, lambda agent: frames(agent, Step.UNMASK, twist(agent)))
    (summary,) = run.status.history
    assert (summary.outcome, summary.attempt, summary.survivors) == ("published", 1, SILOS)
    assert run.names(BAD)
    # The job goes on, and so may the silo.
    assert run.evidence


def test_another_silos_vector_is_not_this_silos_to_send(house: House) -> None:
    """It names the hash of the vector that another silo uploaded, and uploads nothing itself."""
    stolen: list[bytes] = []

    def hostile(agent: Agent) -> None:
        def twist(frame: Frame) -> list[Frame]:
            body = Masked.decode(frame.body)
            folder = house.server / "uploads" / SILOS[0]
            stolen.extend(bytes.fromhex(path.name) for path in folder.iterdir() if path.suffix != ".part")
            vector = stolen[0] if stolen else bytes(32)
            return [resigned(agent, frame, replace(body, vector=vector).encode(), b"")]

        frames(agent, Step.MASKED, twist)

    run = play(house, hostile)
    assert run.status.history[0].survivors == REST
    assert run.names(BAD)


def test_a_vector_out_of_range_is_no_sum_and_accuses_nobody(house: House) -> None:
    """The masks hide whose it was: the round is lost, and that is said."""

    def hostile(agent: Agent) -> None:
        honest = agent.silo.handle

        def handle(event: m.CoordinatorEvent) -> list[Any]:
            answers = honest(event)
            upload = next((a for a in answers if isinstance(a, Upload)), None)
            if upload is None:
                return answers
            words = np.frombuffer(upload.data, "<u4").copy()
            words[0] ^= np.uint32(1 << 31)
            data = words.tobytes()
            frame = next(a.frame for a in answers if isinstance(a, m.SiloFrame))
            body = replace(Masked.decode(frame.body), vector=blob_hash(data))
            goes_on_as_if_it_had_sent(agent, resigned(agent, frame, body.encode(), b""))
            return [Upload(body.vector, data), m.SiloFrame(resigned(agent, frame, body.encode(), b""))]

        agent.silo.handle = handle  # type: ignore[method-assign]

    run = play(house, hostile)
    (summary,) = run.status.history
    assert (summary.outcome, summary.survivors) == ("lost", ())
    assert any("outside the agreed range" in text for text in run.journal)
    assert not any("left out" in text or "blame" in text for text in run.journal)


def test_an_oversize_frame_is_refused_before_it_is_read(house: House) -> None:
    """The stream ends with an error; nobody waits for who comes back without its frame longer than the plan says."""

    def hostile(agent: Agent) -> None:
        frames(agent, Step.SHARES, lambda frame: [replace(frame, body=frame.body + bytes(1 << 17))])

    run = play(house, hostile)
    assert run.status.history[0].survivors == REST


def test_a_message_beyond_grpcs_limit_ends_the_stream_only(house: House) -> None:
    def hostile(agent: Agent) -> None:
        frames(agent, Step.SHARES, lambda frame: [replace(frame, attachment=bytes(32 << 20))])

    run = play(house, hostile)
    assert run.status.history[0].survivors == REST


async def raw(house: House, *chunks: m.Chunk) -> None:
    async def requests() -> AsyncIterator[Any]:
        for chunk in chunks:
            yield codec.CHUNK.to_wire(chunk)

    async with make_channel(house.address, house.tls[BAD]) as channel:
        with translated(house.address):
            await silo_pb2_grpc.SiloServiceStub(channel).Upload(requests())  # type: ignore[no-untyped-call]


def test_an_upload_that_nobody_asked_for_is_refused(house: House) -> None:
    (chunk,) = iter_chunks(bytes(1000))
    with pytest.raises(NotAuthorisedError):
        asyncio.run(raw(house, chunk))
    assert not list((house.server / "uploads").rglob(f"{chunk.blob.hex()}*"))


def test_a_stream_opened_with_anothers_certificate_is_that_silos_alone(house: House) -> None:
    """What a silo may say is decided by its certificate, and a name inside a message decides nothing."""

    async def scenario() -> o.Status:
        async with make_channel(house.address, house.tls[BAD]) as channel:
            stub = silo_pb2_grpc.SiloServiceStub(channel)  # type: ignore[no-untyped-call]
            done = asyncio.Event()

            async def requests() -> AsyncIterator[Any]:
                yield codec.SILO_EVENT.to_wire(Agent(house, BAD).silo.ready())
                await done.wait()

            call = stub.Attend(requests())
            while not any(s.connected for s in (await asyncio.to_thread(status_of, house)).silos):
                await asyncio.sleep(0.05)
            status = await asyncio.to_thread(status_of, house)
            done.set()
            call.cancel()
            return status

    status = asyncio.run(scenario())
    assert [silo.name for silo in status.silos if silo.connected] == [BAD]
