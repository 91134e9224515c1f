"""Public known answers, asked of this package's own functions and not of the library below them.

RFC 7748 (X25519), RFC 5869 (HKDF), RFC 8439 (ChaCha20-Poly1305), RFC 8032 (Ed25519), SP 800-38A (AES-256-CTR) and GCM
of NIST, most of them from the PyPI package `cryptography-vectors`. Where the protocol fixes an input that a vector
varies (an info string, a nonce, a first counter block), the test injects the vector's in its place and leaves the rest
of the function as it is, so that exchanging a primitive fails here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import cryptography_vectors
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM

from secagg import dealing, keys, masks
from secagg.errors import WireError
from secagg.keys import KeyPair, check_public, derive, sign, signature_valid
from secagg.masks import Keystream
from secagg.wire import Step

Record = dict[str, str]


def lines(*path: str) -> Iterator[str]:
    # The package opens a name that is joined to its own directory.
    with cryptography_vectors.open_vector_file(os.path.join(*path), "r") as file:  # noqa: PTH118
        for line in file:
            yield line.strip()


def records(first: str, *path: str) -> Iterator[Record]:
    """The `key = value` records of a file, keys in lower case; `first` is the key that begins a record."""
    record: Record = {}
    for line in lines(*path):
        name, equals, value = line.partition("=")
        name, value = name.strip().lower(), value.strip()
        if not equals or line[0] in "#[":
            continue
        if name == first and record:
            yield record
            record = {}
        record[name] = value
    yield record


def raw(value: str) -> bytes:
    """A value in hex, or as text in quotes."""
    return value.strip('"').encode() if value.startswith('"') else bytes.fromhex(value)


# X25519, RFC 7748


def test_x25519_of_rfc_7748_section_5_2() -> None:
    agreed = 0
    for vector in records("count", "asymmetric", "X25519", "rfc7748.txt"):
        pair = KeyPair.from_private(raw(vector["input_scalar"]))
        assert pair.agree(raw(vector["input_u"])) == raw(vector["output_u"])
        agreed += 1
    assert agreed == 3


def test_x25519_iterated_a_thousand_times_of_rfc_7748_section_5_2() -> None:
    k = u = (9).to_bytes(32, "little")
    for _ in range(1000):
        k, u = KeyPair.from_private(k).agree(u), k
    assert k.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


def test_x25519_shared_secret_of_rfc_7748_section_6_1() -> None:
    alice = KeyPair.from_private(raw("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = KeyPair.from_private(raw("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    secret = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert alice.agree(bob.public).hex() == bob.agree(alice.public).hex() == secret


_P = 2**255 - 19
_SMALL = [0, 1, _P - 1, _P, _P + 1, 2**255 + _P, 2**255, 2**255 + 1, 2**256 - 20]


@pytest.mark.parametrize("u", _SMALL, ids=lambda u: f"{u:064x}"[:4] + f"{u:064x}"[-2:])
def test_x25519_points_of_low_order_give_no_secret_in_any_encoding(u: int) -> None:
    """RFC 7748 section 6.1: the all-zero check, also for unreduced encodings and with the ignored top bit set."""
    point = u.to_bytes(32, "little")
    for private in (bytes(32), b"\xff" * 32, b"k" * 32):
        with pytest.raises(WireError, match="low order"):
            KeyPair.from_private(private).agree(point)
    with pytest.raises(WireError, match="low order"):
        check_public(point)


def test_x25519_accepts_unreduced_points_of_full_order() -> None:
    """RFC 7748 section 5: the function takes values modulo p. The protocol does not: a key has one encoding."""
    pair = KeyPair.from_private(b"k" * 32)
    for u in (2, 3, 9, 18):
        assert pair.agree((_P + u).to_bytes(32, "little")) == pair.agree(u.to_bytes(32, "little"))
        check_public(u.to_bytes(32, "little"))
        with pytest.raises(WireError, match="malformed"):
            check_public((_P + u).to_bytes(32, "little"))
        with pytest.raises(WireError, match="malformed"):
            check_public((2**255 + u).to_bytes(32, "little"))


# HKDF-SHA256, RFC 5869


def test_hkdf_of_rfc_5869(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vector's info in place of the framed one; 32 bytes are the beginning of any longer output."""
    derived = 0
    for vector in records("count", "KDF", "rfc-5869-HKDF-SHA256.txt"):
        info = raw(vector["info"])
        monkeypatch.setattr(keys, "framed", lambda *parts, info=info: info)
        assert derive(raw(vector["ikm"]), b"", raw(vector["salt"])) == raw(vector["okm"])[:32]
        derived += 1
    assert derived == 3


# ChaCha20-Poly1305, RFC 8439


def test_chacha20_poly1305_of_rfc_8439_and_tampered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cipher that deals shares, under the vector's key: seals as the RFC says, opens nothing changed."""
    sealed = 0
    for vector in records("count", "ciphers", "ChaCha20Poly1305", "boringssl.txt"):
        key, nonce, text = raw(vector["key"]), raw(vector["nonce"]), raw(vector["in"])
        extra, expected = raw(vector["ad"]), raw(vector["ct"]) + raw(vector["tag"])
        monkeypatch.setattr(dealing, "derive", lambda *context, key=key: key)
        cipher = dealing._cipher(b"", b"", "a", "b")
        assert cipher.encrypt(nonce, text, extra) == expected
        assert cipher.decrypt(nonce, expected, extra) == text
        for at in {0, len(expected) // 2, len(expected) - 16, len(expected) - 1}:
            with pytest.raises(InvalidTag):
                cipher.decrypt(nonce, expected[:at] + bytes([expected[at] ^ 1]) + expected[at + 1 :], extra)
        with pytest.raises(InvalidTag):
            cipher.decrypt(nonce, expected[:-1], extra)
        with pytest.raises(InvalidTag):
            cipher.decrypt(nonce, expected, extra + b"\0")
        sealed += 1
    assert sealed == 66


def test_chacha20_poly1305_of_openssl_with_its_negative_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = []
    for vector in records("count", "ciphers", "ChaCha20Poly1305", "openssl.txt"):
        nonce = raw(vector["iv"])
        if len(nonce) != 12:
            continue
        key, extra, text = raw(vector["key"]), raw(vector["aad"]), raw(vector["plaintext"])
        expected = raw(vector["ciphertext"]) + raw(vector["tag"])
        monkeypatch.setattr(dealing, "derive", lambda *context, key=key: key)
        cipher = dealing._cipher(b"", b"", "a", "b")
        if "result" in vector:
            with pytest.raises(InvalidTag):
                cipher.decrypt(nonce, expected, extra)
        else:
            assert cipher.encrypt(nonce, text, extra) == expected
        outcomes.append("result" in vector)
    assert outcomes.count(True) >= 1
    assert outcomes.count(False) >= 1


# Ed25519, RFC 8032

_ORDER = 2**252 + 27742317777372353535851937790883648493


def test_ed25519_of_rfc_8032(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vector's message in place of the framed one. The RFC's tests 1, 2, 3 and 1024 are among the 1,024 lines."""
    signed = 0
    for line in lines("asymmetric", "Ed25519", "sign.input"):
        private, public, message, signature = (bytes.fromhex(part) for part in line.split(":")[:4])
        monkeypatch.setattr(keys, "framed", lambda *parts, message=message: message)
        frame = sign(Step.KEYS, "a", b"", Ed25519PrivateKey.from_private_bytes(private[:32]))
        assert frame.signature == signature[:64]
        assert signature_valid(Step.KEYS, b"", frame.signature, public)
        signed += 1
    assert signed == 1024


def test_ed25519_signatures_are_not_malleable() -> None:
    """RFC 8032 section 5.1.7: S must be below the group order, or everybody could make a second valid signature."""
    for index in range(16):
        signer = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(bytes([index])).digest())
        public = signer.public_key().public_bytes_raw()
        frame = sign(Step.KEYS, "a", b"body", signer)
        assert signature_valid(Step.KEYS, b"body", frame.signature, public)
        s = int.from_bytes(frame.signature[32:], "little")
        for multiple in range(1, 16):
            if s + multiple * _ORDER < 2**256:
                forged = frame.signature[:32] + (s + multiple * _ORDER).to_bytes(32, "little")
                assert not signature_valid(Step.KEYS, b"body", forged, public)
        for forged in (frame.signature[:32] + bytes(32), bytes(64), frame.signature[32:] + frame.signature[:32]):
            assert not signature_valid(Step.KEYS, b"body", forged, public)
        assert not signature_valid(Step.KEYS, b"body", replace(frame).signature, public[:-1])
        assert not signature_valid(Step.SHARES, b"body", frame.signature, public)


# AES-256 in counter mode, SP 800-38A, and GCM's keystream


def xored(key: bytes, text: bytes, start: masks.Start) -> bytes:
    stream = Keystream(key, start).words(-(-len(text) // 4), "<u4").tobytes()
    return bytes(a ^ b for a, b in zip(text, stream, strict=False))


def test_counter_mode_of_sp_800_38a_section_f_5_5(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vector's first counter block in place of ours."""
    monkeypatch.setattr(masks, "CTR", lambda _: CTR(raw("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")))
    text = raw(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    expected = (
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    key = raw("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    assert xored(key, text, masks.ctr).hex() == expected


def test_counter_mode_of_rfc_3686(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = 0
    for vector in records("count", "ciphers", "AES", "CTR", "aes-256-ctr.txt"):
        first = raw(vector["iv"])
        monkeypatch.setattr(masks, "CTR", lambda _, first=first: CTR(first))
        assert xored(raw(vector["key"]), raw(vector["plaintext"]), masks.ctr) == raw(vector["ciphertext"])
        checked += 1
    assert checked == 3


@pytest.mark.parametrize("start", [masks.ctr, masks.gcm, None], ids=["ctr", "gcm", "chosen"])
def test_the_stream_itself_is_the_ciphertext_of_gcm_test_case_14(start: masks.Start | None) -> None:
    """McGrew and Viega, The Galois/Counter Mode of Operation, appendix B: zero key, zero nonce, one block of zeros."""
    assert Keystream(bytes(32), start).words(4, "<u4").tobytes().hex() == "cea7403d4d606b6e074ec5d3baf39d18"


def test_gcm_of_nist_is_counter_mode_from_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """NIST's vectors with a 96-bit nonce, through both ways to the stream: it begins at counter 2."""
    checked = 0
    for vector in islice(records("count", "ciphers", "AES", "GCM", "gcmEncryptExtIV256.rsp"), 1500):
        if vector["pt"] and len(vector["iv"]) == 24:
            nonce = raw(vector["iv"])
            monkeypatch.setattr(masks, "GCM", lambda _, nonce=nonce: GCM(nonce))
            monkeypatch.setattr(masks, "CTR", lambda _, nonce=nonce: CTR(nonce + (2).to_bytes(4)))
            for start in (masks.gcm, masks.ctr):
                assert xored(raw(vector["key"]), raw(vector["pt"]), start) == raw(vector["ct"])
            checked += 1
    assert checked > 500
