"""Sealed queries against everybody in between: whatever is swapped, altered, forged or replayed does not open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from hypothesis import given, settings
from hypothesis import strategies as st

from feddrm.contract import labels
from feddrm.contract.errors import InputError, MalformedError, VerificationError
from feddrm.contract.identity import SealingKey, sealing_public_key
from feddrm.contract.seal import (
    AskContext,
    OpenedRequest,
    PendingAnswer,
    open_answer,
    open_request,
    query_hash,
    seal_answer,
    seal_request,
)
from feddrm.contract.signed import signing_input

QUERIER = Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))
SILO = Ed25519PrivateKey.from_private_bytes(bytes([2] * 32))
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes([3] * 32))
SEALING = SealingKey(bytes(range(64)), bytes([5] * 32))
OTHER_SEALING = SealingKey(bytes(range(1, 65)), bytes([6] * 32))
CONTEXT = AskContext("retina", "desk", "hospital-a", 7, bytes([8] * 32), bytes([9] * 32))
NOW = 1_800_000_000_000
FEATURES = np.arange(6, dtype=np.float32).reshape(2, 3)
PROBABILITIES = np.array([[0.25, 0.75], [1.0, 0.0]], dtype=np.float32)
SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def seal(**changes: Any) -> tuple[bytes, PendingAnswer]:
    arguments: dict[str, Any] = {"context": CONTEXT, "sealing_key": SEALING.public(), "signer": QUERIER, "now_ms": NOW}
    features = changes.pop("features", FEATURES)
    return seal_request(features, **(arguments | changes))


def opened(sealed: bytes, **changes: Any) -> OpenedRequest:
    arguments: dict[str, Any] = {
        "context": CONTEXT,
        "private_key": SEALING.hpke(),
        "querier_key": public(QUERIER),
        "now_ms": NOW,
    }
    return open_request(sealed, **(arguments | changes))


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(1, 400), st.integers(1, 9))
def test_a_request_and_its_answer_arrive(records: int, width: int, classes: int) -> None:
    features = np.linspace(-3, 3, records * width, dtype=np.float32).reshape(records, width)
    probabilities = np.linspace(0, 1, records * classes, dtype=np.float32).reshape(records, classes)
    sealed, pending = seal(features=features)
    request = opened(sealed)
    np.testing.assert_array_equal(request.features, features)
    assert request.query == pending.query == query_hash(sealed)
    answer = seal_answer(request, probabilities, signer=SILO)
    np.testing.assert_array_equal(open_answer(pending, answer, silo_key=public(SILO)), probabilities)


def test_lengths_tell_buckets_only() -> None:
    lengths = {len(seal(features=np.zeros((1, width), dtype=np.float32))[0]) for width in range(1, 228)}
    assert lengths == {1024 + 1120 + 16}
    assert len(seal(features=np.zeros((1, 230), dtype=np.float32))[0]) == 2048 + 1120 + 16
    request = opened(seal()[0])
    sure = np.array([[1, 0], [1, 0]], dtype=np.float32)
    assert len(seal_answer(request, sure, signer=SILO)) == len(seal_answer(request, PROBABILITIES, signer=SILO))


def test_secrets_are_not_printed() -> None:
    sealed, pending = seal()
    text = repr(pending) + repr(opened(sealed))
    assert pending.response_key.hex() not in text
    assert repr(pending.response_key) not in text
    assert "array" not in text


@pytest.mark.parametrize(
    "change",
    [
        {"private_key": OTHER_SEALING.hpke()},
        {"private_key": SealingKey(SEALING.seed, OTHER_SEALING.x25519).hpke()},
        {"private_key": SealingKey(OTHER_SEALING.seed, SEALING.x25519).hpke()},
        *(
            {"context": replace(CONTEXT, **change)}
            for change in (
                {"federation": "cornea"},
                {"querier": "another"},
                {"silo": "hospital-b"},
                {"roster_version": 8},
                {"release": bytes(32)},
                {"ticket": bytes(32)},
                # Moving a byte across a field's border must not give the same bytes.
                {"federation": "retinad", "querier": "esk"},
            )
        ),
    ],
)
def test_another_silo_key_or_context_does_not_open_it(change: dict[str, Any]) -> None:
    with pytest.raises(VerificationError, match="not made for this silo"):
        opened(seal()[0], **change)


def test_a_sealing_key_substituted_by_the_coordinator_opens_nothing_for_the_silo() -> None:
    """The querier takes the key from its own roster; a request made to any other key does not open."""
    with pytest.raises(VerificationError, match="not made for this silo"):
        opened(seal(sealing_key=OTHER_SEALING.public())[0])
    with pytest.raises(MalformedError):
        seal(sealing_key=SEALING.public()[:-1])


def test_a_forged_querier() -> None:
    with pytest.raises(VerificationError, match="not signed by desk"):
        opened(seal(signer=STRANGER)[0])
    with pytest.raises(VerificationError, match="not signed by desk"):
        opened(seal()[0], querier_key=public(STRANGER))


def test_a_request_resealed_for_another_silo_keeps_a_signature_that_fails() -> None:
    """Hospital A opens a request and seals the very plaintext to hospital B, to ask in the querier's name."""
    sealed, _ = seal()
    plaintext = SUITE.decrypt(sealed, SEALING.hpke(), signing_input(labels.SEAL_INFO, CONTEXT.encode()))
    other = replace(CONTEXT, silo="hospital-b")
    forged = SUITE.encrypt(
        plaintext, sealing_public_key(OTHER_SEALING.public()), signing_input(labels.SEAL_INFO, other.encode())
    )
    with pytest.raises(VerificationError, match="not signed by desk"):
        opened(forged, private_key=OTHER_SEALING.hpke(), context=other)


@pytest.mark.parametrize("shift", [-3_600_001, 3_600_001])
def test_a_request_out_of_its_time(shift: int) -> None:
    with pytest.raises(VerificationError, match="too old"):
        opened(seal()[0], now_ms=NOW + shift)
    assert opened(seal()[0], now_ms=NOW + (shift // 2)).issued_ms == NOW


def test_a_replay_has_the_same_name_and_a_new_request_another() -> None:
    sealed, pending = seal()
    assert opened(sealed).query == opened(bytes(sealed)).query == pending.query
    assert seal()[1].query != pending.query
    assert seal()[1].response_key != pending.response_key


def test_every_altered_or_cut_byte_of_a_request_is_noticed() -> None:
    sealed, _ = seal()
    for position in [*range(0, len(sealed), 37), len(sealed) - 1]:
        altered = bytearray(sealed)
        altered[position] ^= 1
        with pytest.raises(VerificationError):
            opened(bytes(altered))
    for length in (0, 1, 31, 1119, 1136, len(sealed) - 1):
        with pytest.raises((VerificationError, MalformedError)):
            opened(sealed[:length])
    with pytest.raises((VerificationError, MalformedError)):
        opened(sealed + b"\x00")


@settings(max_examples=100)
@given(st.binary(max_size=4000))
def test_random_bytes_open_as_nothing(data: bytes) -> None:
    with pytest.raises((VerificationError, MalformedError)):
        opened(data)
    with pytest.raises((VerificationError, MalformedError)):
        open_answer(seal()[1], data, silo_key=public(SILO))


def signed_plaintext(body: bytes, signer: Ed25519PrivateKey = QUERIER, tail: bytes = b"") -> bytes:
    signature = signer.sign(signing_input(labels.ASK, CONTEXT.encode() + body))
    plaintext = body + signature + tail
    return SUITE.encrypt(
        plaintext + bytes(-len(plaintext) % 1024),
        sealing_public_key(SEALING.public()),
        signing_input(labels.SEAL_INFO, CONTEXT.encode()),
    )


@pytest.mark.parametrize(
    "body",
    [
        NOW.to_bytes(8) + (0).to_bytes(4) + (3).to_bytes(4) + bytes(32),
        NOW.to_bytes(8) + (1).to_bytes(4) + (0).to_bytes(4) + bytes(32),
        NOW.to_bytes(8) + (1 << 31).to_bytes(4) + (1 << 31).to_bytes(4) + bytes(32),
        NOW.to_bytes(8) + (4096).to_bytes(4) + (4096).to_bytes(4) + bytes(32),
        NOW.to_bytes(8) + (1).to_bytes(4) + (1).to_bytes(4) + bytes(32) + np.array([np.nan], "<f4").tobytes(),
        NOW.to_bytes(8) + (1).to_bytes(4) + (1).to_bytes(4) + bytes(32) + np.array([np.inf], "<f4").tobytes(),
    ],
)
def test_a_hostile_but_enrolled_querier_gets_a_malformed_request_refused(body: bytes) -> None:
    with pytest.raises(MalformedError):
        opened(signed_plaintext(body))


def test_padding_is_checked() -> None:
    body = NOW.to_bytes(8) + (1).to_bytes(4) + (1).to_bytes(4) + bytes(32) + bytes(4)
    assert opened(signed_plaintext(body)).features.shape == (1, 1)
    with pytest.raises(MalformedError, match="length"):
        opened(signed_plaintext(body, tail=b"covert"))
    with pytest.raises(MalformedError, match="length"):
        opened(signed_plaintext(body, tail=bytes(1024)))


@pytest.mark.parametrize(
    "features",
    [
        np.zeros((0, 3), dtype=np.float32),
        np.zeros(3, dtype=np.float32),
        np.zeros((4096, 65), dtype=np.float32),
        np.full((1, 3), np.nan, dtype=np.float32),
    ],
)
def test_what_cannot_be_asked_is_the_users_input(features: npt.NDArray[np.float32]) -> None:
    with pytest.raises(InputError):
        seal(features=features)


def test_an_answer_forged_without_the_response_key() -> None:
    sealed, pending = seal()
    guessed = replace(opened(sealed), response_key=bytes(32))
    with pytest.raises(VerificationError, match="not an answer"):
        open_answer(pending, seal_answer(guessed, PROBABILITIES, signer=SILO), silo_key=public(SILO))


def test_an_answer_signed_by_another_silo() -> None:
    sealed, pending = seal()
    answer = seal_answer(opened(sealed), PROBABILITIES, signer=STRANGER)
    with pytest.raises(VerificationError, match="not signed by hospital-a"):
        open_answer(pending, answer, silo_key=public(SILO))


def test_an_answer_to_another_request_even_under_the_same_response_key() -> None:
    (first, pending), (second, _) = seal(), seal()
    answer = seal_answer(opened(second), PROBABILITIES, signer=SILO)
    with pytest.raises(VerificationError, match="not an answer"):
        open_answer(pending, answer, silo_key=public(SILO))
    (first, pending), (second, _) = seal(entropy=lambda n: bytes(n)), seal(entropy=lambda n: bytes(n))
    answer = seal_answer(opened(second), PROBABILITIES, signer=SILO)
    with pytest.raises(VerificationError, match="not an answer"):
        open_answer(pending, answer, silo_key=public(SILO))
    assert query_hash(first) != query_hash(second)


def test_every_altered_or_cut_byte_of_an_answer_is_noticed() -> None:
    sealed, pending = seal()
    answer = seal_answer(opened(sealed), PROBABILITIES, signer=SILO)
    for position in range(len(answer)):
        altered = bytearray(answer)
        altered[position] ^= 1
        with pytest.raises(VerificationError):
            open_answer(pending, bytes(altered), silo_key=public(SILO))
    for length in (0, 31, 48, 100, len(answer) - 1):
        with pytest.raises((VerificationError, MalformedError)):
            open_answer(pending, answer[:length], silo_key=public(SILO))


def test_an_answer_for_another_number_of_records() -> None:
    sealed, pending = seal()
    one = replace(opened(sealed), features=FEATURES[:1])
    answer = seal_answer(one, PROBABILITIES[:1], signer=SILO)
    with pytest.raises(MalformedError, match="another number of records"):
        open_answer(pending, answer, silo_key=public(SILO))


@pytest.mark.parametrize(
    "probabilities",
    [
        PROBABILITIES[:1],
        PROBABILITIES[:, :0],
        PROBABILITIES[0],
        PROBABILITIES * 2,
        -PROBABILITIES,
        PROBABILITIES * np.float32("nan"),
    ],
)
def test_a_silo_seals_probabilities_only(probabilities: npt.NDArray[np.float32]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        seal_answer(opened(seal()[0]), probabilities, signer=SILO)


def test_two_answers_to_one_request_share_no_keystream() -> None:
    request = opened(seal()[0])
    first, second = (seal_answer(request, PROBABILITIES, signer=SILO)[32:] for _ in range(2))
    assert sum(a == b for a, b in zip(first, second, strict=True)) < len(first) // 8
