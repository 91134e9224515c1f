"""Keys, Shamir and the bytes of vectors, each against an independent statement of what it should do."""

from __future__ import annotations

import hashlib
import hmac
import importlib
import os
from itertools import combinations
from typing import Any

import cryptography_vectors
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from secagg_harness import Federation, stream

from secagg import labels
from secagg.bodies import Keys
from secagg.errors import MisuseError, WireError
from secagg.keys import KeyPair, check_public, derive, framed, sign, signature_valid
from secagg.pairing import Streams
from secagg.shamir import PRIME, combine, lagrange_at_zero, parse, split
from secagg.wire import Step

SID = b"S" * 32


def all_labels(module: Any) -> list[bytes]:
    values = [value for name, value in vars(module).items() if name.isupper()]
    return [label for value in values for label in (value.values() if isinstance(value, dict) else [value])]


def test_no_two_labels_of_any_package_collide() -> None:
    every = [
        label
        for name in ("secagg.labels", "feddrm.contract.labels", "privacy.labels")
        for label in all_labels(importlib.import_module(name))
    ]
    assert len(set(every)) == len(every) > 20
    assert set(labels.SIGN) == set(Step)


# Keys


def test_rfc_7748_vectors() -> None:
    path = os.path.join("asymmetric", "X25519", "rfc7748.txt")  # noqa: PTH118  the package opens by joined name
    found: dict[str, bytes] = {}
    agreed = 0
    with cryptography_vectors.open_vector_file(path, "r") as lines:
        for line in lines:
            name, _, value = line.strip().partition(" = ")
            if value and name != "COUNT":
                found[name.lower()] = bytes.fromhex(value)
            if len(found) == 3:
                assert KeyPair.from_private(found["input_scalar"]).agree(found["input_u"]) == found["output_u"]
                found = {}
                agreed += 1
    assert agreed == 3


def test_hkdf_against_rfc_5869_written_out() -> None:
    info = framed(b"label", SID, b"x")
    extracted = hmac.new(SID, b"secret", hashlib.sha256).digest()
    assert derive(b"secret", b"label", SID, b"x") == hmac.new(extracted, info + b"\1", hashlib.sha256).digest()


def test_framing_is_injective() -> None:
    assert len({framed(), framed(b""), framed(b"", b""), framed(b"ab"), framed(b"a", b"b"), framed(b"", b"ab")}) == 6


def test_every_stream_of_a_session_has_its_own_key() -> None:
    """Peers' failure: the same self-mask stream in two segments gives the difference of their contents."""
    streams = Streams()
    names = [f"s{index}" for index in range(6)]
    for name in names:
        streams.self_mask(SID, name, b"same secret", add=True)
        streams.self_mask(b"T" * 32, name, b"same secret", add=True)
    for lower, higher in combinations(names, 2):
        streams.pair_mask(SID, lower, higher, b"same secret", add=True)
        streams.pair_mask(SID, higher, lower, b"same secret", add=False)
        streams.pair_mask(b"T" * 32, lower, higher, b"same secret", add=True)
    keys = [key for side in (streams.add, streams.subtract) for segment in side.values() for key in segment]
    assert len(keys) == 2 * (12 + 45)
    assert len(set(keys)) == len(keys)


def test_pair_seeds_have_full_entropy() -> None:
    """Peers' failure: pair seeds of 28 bits. Each key is 32 bytes from an exchange of 32-byte secrets."""
    session = Federation().start().run(Step.SHARES)
    secrets = set()
    for name in session.federation.names:
        ready = session.clients[name].receive(session.server.outgoing[name])
        secrets |= set(ready._data.mask_secrets.values())
        assert len(ready._data.seed) == 32
    assert len(secrets) == 10
    assert all(len(secret) == 32 for secret in secrets)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_keys_of_the_wrong_length_are_refused(size: int) -> None:
    with pytest.raises(WireError):
        check_public(bytes([9] * size))
    with pytest.raises(WireError):
        KeyPair.from_private(b"k" * 32).agree(bytes([9] * size))
    with pytest.raises(MisuseError, match="32 bytes"):
        KeyPair.from_private(bytes([9] * size))


def test_no_key_of_low_order_signs() -> None:
    """Under the neutral element as a key one signature fits every message, where nobody looks: a silo enrolled with it
    could deny all that it ever signed."""
    neutral = b"\1" + bytes(31)
    anything = neutral + bytes(32)
    for body in (b"one", b"another"):
        Ed25519PublicKey.from_public_bytes(neutral).verify(anything, framed(labels.SIGN[Step.KEYS], body))
        assert not signature_valid(Step.KEYS, body, anything, neutral)


def test_keys_and_signatures_of_another_length_verify_nothing() -> None:
    signer = Ed25519PrivateKey.generate()
    key, signature = signer.public_key().public_bytes_raw(), sign(Step.KEYS, "a", b"body", signer).signature
    assert signature_valid(Step.KEYS, b"body", signature, key)
    for size in (0, 31, 33):
        assert not signature_valid(Step.KEYS, b"body", signature, (2 * key)[:size])
    for size in (0, 63, 65):
        assert not signature_valid(Step.KEYS, b"body", (2 * signature)[:size], key)


# Shamir

secrets32 = st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32]))


@given(secrets32, st.integers(2, 12), st.integers(0, 8), st.randoms(use_true_random=False))
def test_any_t_shares_give_the_secret(secret: bytes, threshold: int, extra: int, random: Any) -> None:
    shares = split(secret, threshold, threshold + extra, stream("shamir", secret, threshold))
    chosen = random.sample(range(len(shares)), threshold)
    weights = lagrange_at_zero([index + 1 for index in chosen])
    assert combine(weights, [shares[index] for index in chosen]) == secret


@given(secrets32, secrets32, st.integers(2, 6))
def test_t_minus_1_shares_fit_every_secret(secret: bytes, other: bytes, threshold: int) -> None:
    """Perfect secrecy, shown: for any other secret there is a polynomial through the same t - 1 shares."""
    shares = split(secret, threshold, threshold, stream("secrecy", secret))[:-1]
    points = list(range(1, threshold))
    weights = lagrange_at_zero([*points, threshold])
    known = sum(w * parse(s) for w, s in zip(weights, shares, strict=False)) % PRIME
    missing = (int.from_bytes(other) - known) * pow(weights[-1], -1, PRIME) % PRIME
    assert combine(weights, [*shares, missing.to_bytes(66)]) == other


@given(secrets32, st.integers(3, 8), st.integers(0, 520))
def test_an_altered_share_never_gives_the_secret(secret: bytes, threshold: int, bit: int) -> None:
    shares = list(split(secret, threshold, threshold, stream("altered", secret)))
    shares[1] = ((parse(shares[1]) ^ (1 << bit)) % PRIME).to_bytes(66)
    weights = lagrange_at_zero(range(1, threshold + 1))
    try:
        assert combine(weights, shares) != secret
    except WireError:
        return


def test_two_secrets_use_independent_polynomials() -> None:
    session = Federation().start().run(Step.SHARES)
    ready = session.clients["silo-0"].receive(session.server.outgoing["silo-0"])
    for held in ready._data.held.values():
        assert held.seed.share != held.key.share
        assert held.seed.salt != held.key.salt
    entropy = stream("one source")
    one, other = split(bytes(32), 3, 3, entropy), split(bytes(32), 3, 3, entropy)
    assert not set(one) & set(other)


def test_shares_and_points_that_are_refused() -> None:
    for share in (b"", bytes(65), bytes(67), PRIME.to_bytes(66), b"\xff" * 66):
        with pytest.raises(WireError):
            parse(share)
    for points in ([1, 1], [0, 1], [PRIME]):
        with pytest.raises(MisuseError):
            lagrange_at_zero(points)
    for secret, threshold, count in ((bytes(31), 2, 3), (bytes(32), 1, 3), (bytes(32), 4, 3)):
        with pytest.raises(MisuseError):
            split(secret, threshold, count, os.urandom)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        combine([1, 1], [bytes(66)])


def test_the_one_draw_that_is_no_field_element_is_drawn_again() -> None:
    draws = iter([b"\xff" * 66, bytes(65) + b"\5"])
    assert split(bytes(32), 2, 2, lambda size: next(draws)) == ((5).to_bytes(66), (10).to_bytes(66))


# Vectors


@pytest.mark.parametrize(
    ("words32", "words64"),
    [
        (np.zeros(7, np.int16), np.zeros(2, np.int64)),
        (np.zeros(7, np.int64), np.zeros(2, np.int32)),
        (np.zeros(7, np.float64), np.zeros(2, np.int64)),
        (np.zeros(6, np.int64), np.zeros(2, np.int64)),
        (np.zeros((7, 1), np.int64), np.zeros(2, np.int64)),
        (np.zeros(7, np.int64), np.zeros(3, np.int64)),
        (np.zeros(7, np.uint64), np.zeros(2, np.int64)),
        (np.zeros(7, np.int64), np.zeros(2, np.uint32)),
    ],
)
def test_arrays_of_another_form_are_refused_and_do_not_use_up_the_state(words32: Any, words64: Any) -> None:
    session = Federation().start().run(Step.SHARES)
    ready = session.clients["silo-0"].receive(session.server.outgoing["silo-0"])
    with pytest.raises(MisuseError):
        ready.mask(words32, words64)
    ready.mask(*session.federation.words("silo-0"))


def test_twos_complement_is_the_same_vector() -> None:
    federation = Federation()
    frames = []
    for convert in (False, True):
        session = federation.start().run(Step.SHARES)
        ready = session.clients["silo-0"].receive(session.server.outgoing["silo-0"])
        words32, words64 = federation.words("silo-0")
        if convert:
            frames.append(ready.mask(words32.astype(np.uint32), words64.view(np.uint64))[1])
        else:
            frames.append(ready.mask(words32, words64)[1])
    assert frames[0] == frames[1]


def test_sample_counts_do_not_travel_beside_masked_vectors() -> None:
    """Peers' failure: counts in clear. R3 says nothing but hashes, and all other bytes are masked."""
    session = Federation().start().run(Step.MASKED)
    for name, frame in session.sent[Step.MASKED].items():
        assert len(frame.attachment) == session.announcement.vector_size
        assert len(frame.body) == 32 + 1 + len(name) + 32 + 32
    assert {len(frame.body) for frame in session.sent[Step.KEYS].values()} == {32 + 7 + 2 + 7 * 32}
    assert Keys.decode(session.sent[Step.KEYS]["silo-0"].body).sender == "silo-0"
