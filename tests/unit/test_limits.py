"""Limits that packages which must not import each other have to share."""

from __future__ import annotations

import pytest

import privacy.witness
import secagg.wire
from feddrm.contract import codec
from feddrm.contract import messages as m
from feddrm.contract.chunks import CHUNK_BYTES
from feddrm.contract.codec_records import MAXIMUM_MESSAGE
from feddrm.contract.signed import Signature, Signed
from feddrm.transport.peers import largest_request
from secagg.dealing import CIPHERTEXT_SIZE
from secagg.wire import MAXIMUM_BODY, MAXIMUM_EVIDENCE, MAXIMUM_PROOF, MAXIMUM_SILOS, Frame, Step

ATTEND = "/feddrm.v1.SiloService/Attend"
# The largest body is legitimate nowhere; it is what a frame may have.
LARGEST = {
    Step.KEYS: (MAXIMUM_BODY, MAXIMUM_PROOF),
    Step.SHARES: (MAXIMUM_BODY, CIPHERTEXT_SIZE * (MAXIMUM_SILOS - 1)),
    Step.MASKED: (MAXIMUM_BODY, 0),
    Step.CONSISTENCY: (MAXIMUM_BODY, 0),
    Step.UNMASK: (MAXIMUM_BODY, 0),
    Step.ABORT: (4096, MAXIMUM_EVIDENCE),
}


def test_a_ledger_proof_has_one_limit_and_fits_into_evidence() -> None:
    """A proof that one side takes and the other cannot even refuse would end every honest agent (found in review)."""
    assert secagg.wire.MAXIMUM_PROOF == privacy.witness.MAXIMUM_PROOF
    assert secagg.wire.MAXIMUM_PROOF < secagg.wire.MAXIMUM_EVIDENCE


@pytest.mark.parametrize("step", [step for step in Step if step not in (Step.ANNOUNCE, Step.PUBLISH)])
def test_every_step_of_the_largest_cohort_is_one_message(step: Step) -> None:
    """100 silos with names of 32 letters, each frame as large as its step allows: to every silo, from the
    coordinator, and back."""
    body, attachment = LARGEST[step]
    names = [f"{'x' * 29}{index:03d}" for index in range(MAXIMUM_SILOS)]
    frames = tuple(Frame(int(step), name, bytes(body), bytes(64), bytes(attachment)) for name in names)
    if step is Step.ABORT:
        acks = tuple(Signed(bytes(1000), (Signature(bytes(32), bytes(64)),)) for _ in names)
        announce = Frame(int(Step.ANNOUNCE), "", bytes(MAXIMUM_BODY), bytes(64))
        event: m.CoordinatorEvent = m.Announce(
            announce, frames, m.RoundOutcome(1, acks, bytes(32)), tuple(range(MAXIMUM_SILOS))
        )
    else:
        event = m.StepFrames(bytes(32), int(step), frames)
    data = codec.COORDINATOR_EVENT.encode(event)
    assert len(data) <= MAXIMUM_MESSAGE
    assert codec.COORDINATOR_EVENT.decode(data) == event
    assert len(codec.SILO_EVENT.encode(m.SiloFrame(frames[0]))) <= largest_request(ATTEND)


def test_a_chunk_is_not_refused_for_its_size() -> None:
    chunk = m.Chunk(bytes(32), codec.MAXIMUM_BLOB, codec.MAXIMUM_BLOB - CHUNK_BYTES, bytes(CHUNK_BYTES), bytes(32))
    assert len(codec.CHUNK.encode(chunk)) <= largest_request("/feddrm.v1.SiloService/Upload")


def test_the_proofs_of_the_largest_cohort_fit_into_one_message() -> None:
    assert secagg.wire.MAXIMUM_SILOS * (secagg.wire.MAXIMUM_PROOF + 4096) < MAXIMUM_MESSAGE
