"""What the coordinator sees of a real run: nothing of a patient, no count, no loss, no score, no unmasked update."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from small_federation import CANARY_NUMBER, CANARY_PATIENT, CANARY_TEXT, NAMES, PERSONS, ROUNDS, SmallRun
from wire_search import found, from_silos, json_documents, keys, masked_inputs, numbers, windows

from feddrm.contract import codec
from feddrm.transport.recorder import Recorded, read_recording


@pytest.fixture(scope="module")
def traffic(small: SmallRun) -> list[Recorded]:
    return list(read_recording(small.recording))


def test_the_recording_holds_the_whole_run(traffic: list[Recorded]) -> None:
    methods = {message.method.rsplit("/", 1)[-1] for message in traffic}
    assert {"Attend", "Route", "Ask", "Serve", "StartJob", "GetRelease"} <= methods
    assert {message.direction for message in traffic} == {"received", "sent"}


def test_the_search_finds_what_is_there(traffic: list[Recorded]) -> None:
    assert found(traffic, b"small-job"), "a search that finds nothing at all proves nothing"


@pytest.mark.parametrize(
    "secret",
    [
        CANARY_PATIENT.encode(),
        repr(CANARY_NUMBER).encode(),
        struct.pack("<d", CANARY_NUMBER),
        struct.pack("<f", CANARY_NUMBER),
        struct.pack("<f", 2 * CANARY_NUMBER / 10000 - 1),
        struct.pack("<d", 2 * CANARY_NUMBER / 10000 - 1),
    ],
)
def test_no_canary_travels(traffic: list[Recorded], secret: bytes) -> None:
    assert not found(traffic, secret)


def test_the_canary_word_travels_in_the_public_schema_only(traffic: list[Recorded]) -> None:
    """It is a category that the plan lists, so the plan itself carries it; nothing else may."""
    for message in traffic:
        if CANARY_TEXT.encode() in message.data:
            assert b'"categories"' in message.data


def test_no_update_travels_unmasked(small: SmallRun, traffic: list[Recorded]) -> None:
    sent = from_silos(traffic)
    checked = 0
    for name in NAMES:
        for path in (small.federation.directory / "kept" / name).glob("*.npy"):
            update = np.load(path)
            assert update.any(), "an update of zeros would make this test vacuous"
            for window in windows(update):
                checked += 1
                assert window not in sent
    assert checked > 100
    vectors = masked_inputs(traffic)
    assert len(vectors) >= 3 * ROUNDS, "west declines the plan"
    assert all(len(vector) > 4 * 20 and vector in sent for vector in vectors)


def test_no_exact_count_travels_in_any_readable_document(small: SmallRun, traffic: list[Recorded]) -> None:
    """Every JSON document on the wire (plans, rosters, leaves, heads, acks, tickets) is searched for the counts."""
    counts = set(PERSONS.values()) | {sum(1 + person % 2 for person in range(n)) for n in PERSONS.values()}
    seen = 0
    for message in traffic:
        for document in json_documents(message.data):
            seen += 1
            assert not set(numbers(document)) & counts, document
    assert seen > 50


def test_no_readable_document_has_a_key_for_a_metric(traffic: list[Recorded]) -> None:
    banned = {"loss", "accuracy", "score", "scores", "logit", "logits", "margin", "count_patients", "samples"}
    banned |= {"batch", "batch_size", "norm", "gradient_norm", "probability", "density", "num_examples", "size_exact"}
    for message in traffic:
        for document in json_documents(message.data):
            assert not banned & set(keys(document)), document


def test_route_replies_hold_a_name_a_version_and_a_ticket(small: SmallRun, traffic: list[Recorded]) -> None:
    replies = [m for m in traffic if m.method.endswith("/Route") and m.direction == "sent"]
    assert replies
    tickets = [d for m in replies for d in json_documents(m.data)]
    times = {"issued_ms", "expires_ms", "nonce"}
    names = {"format", "federation", "querier", "release", "roster_version", "silo"}
    assert {frozenset(ticket) for ticket in tickets} == {frozenset(times | names)}


def test_route_requests_hold_the_release_and_two_bytes_a_record(traffic: list[Recorded]) -> None:
    """Eight units of the plan's two bits: whatever is searched for behind them, 16 bits are all that was shown."""
    requests = [m for m in traffic if m.method.endswith("/Route") and m.direction == "received"]
    assert requests
    for message in requests:
        request = codec.ROUTE_REQUEST.decode(message.data)
        assert {len(code) for code in request.codes} == {2}
        assert codec.ROUTE_REQUEST.encode(request) == message.data


def test_answers_do_not_show_by_their_length(traffic: list[Recorded]) -> None:
    answers = [m for m in traffic if m.method.endswith("/Ask") and m.direction == "sent"]
    assert len(answers) > 20
    assert len({len(m.data) for m in answers}) == 1
