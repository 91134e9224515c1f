from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from feddrm.contract.errors import InputError, MalformedError, NotAuthorisedError, VerificationError
from feddrm.contract.home import init_member, load_keys
from feddrm.contract.identity import (
    SEALING_PUBLIC,
    MemberKeys,
    Role,
    SealingKey,
    Subject,
    check_identity_key,
    sealing_public_key,
    sign_sealing_key,
    verify_sealing_key,
)

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
L = 2**252 + 27742317777372353535851937790883648493


def _add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    (x1, y1), (x2, y2) = a, b
    k = D * x1 * x2 * y1 * y2
    return (
        (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P,
    )


def _small_order_points() -> set[tuple[int, int]]:
    """The eight points of order dividing 8, by multiplying points of the curve with the large prime order."""
    found = {(0, 1)}
    y = 2
    while len(found) < 8:
        square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
        x = pow(square, (P + 3) // 8, P)
        if x * x % P != square:
            x = x * pow(2, (P - 1) // 4, P) % P
        if x * x % P == square:
            point, total, n = (x, y), (0, 1), L
            while n:
                if n & 1:
                    total = _add(total, point)
                point, n = _add(point, point), n >> 1
            while total not in found:
                found.add(total)
                for other in list(found):
                    found.add(_add(total, other))
        y += 1
    return found


def test_every_key_of_small_order_is_refused() -> None:
    points = _small_order_points()
    assert len(points) == 8
    encodings = set()
    for _, y in points:
        for value in (y, y + P):  # y + P: the non-canonical encoding, where it fits 255 bits.
            if value < 2**255:
                encodings |= {(value | sign << 255).to_bytes(32, "little") for sign in (0, 1)}
    for raw in encodings:
        with pytest.raises(MalformedError):
            check_identity_key(raw)
    check_identity_key(Ed25519PrivateKey.generate().public_key().public_bytes_raw())


def test_why_small_order_matters_one_signature_fits_all_messages() -> None:
    """The defence is not idle: the library itself accepts such a forgery."""
    identity_point = (1).to_bytes(32, "little")
    key = Ed25519PublicKey.from_public_bytes(identity_point)
    forged = identity_point + bytes(32)
    key.verify(forged, b"I enrol")
    key.verify(forged, b"I never did")


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_identity_keys_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(MalformedError):
        check_identity_key(bytes([7] * length))


def test_sealing_keys_survive_their_file_and_open_what_is_sealed_to_them() -> None:
    key = SealingKey.generate()
    again = SealingKey.from_text(key.to_text())
    assert again == key
    assert len(key.public()) == SEALING_PUBLIC
    suite = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
    sealed = suite.encrypt(b"phi", sealing_public_key(key.public()), b"info")
    assert suite.decrypt(sealed, again.hpke(), b"info") == b"phi"


def test_secrets_are_not_printed() -> None:
    keys = MemberKeys.generate()
    text = repr(keys) + repr(keys.sealing) + str(keys)
    assert keys.sealing.seed.hex() not in text
    assert repr(keys.sealing.seed) not in text
    assert "PrivateKey" not in text


def test_unusable_sealing_keys_are_refused() -> None:
    mlkem = MLKEM768PrivateKey.generate().public_key().public_bytes_raw()
    x25519 = X25519PrivateKey.generate().public_key().public_bytes_raw()
    sealing_public_key(mlkem + x25519)
    bad = [
        b"",
        mlkem,
        mlkem + x25519 + b"x",
        mlkem + bytes(32),  # order 4 (u = 0)
        mlkem + (1).to_bytes(32, "little"),
        mlkem + (P - 1).to_bytes(32, "little"),
        mlkem + bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        mlkem + bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
        bytes([255] * 1184) + x25519,  # coefficients at or above the modulus (FIPS 203 section 7.2)
    ]
    for raw in bad:
        with pytest.raises(MalformedError):
            sealing_public_key(raw)


def test_a_sealing_key_is_bound_to_identity_and_name() -> None:
    one, two = MemberKeys.generate(), MemberKeys.generate()
    sealing = one.sealing.public()
    signature = sign_sealing_key(one.identity, "a", sealing)
    verify_sealing_key(one.identity_public, "a", sealing, signature)
    for identity, name, key, signed in (
        (two.identity_public, "a", sealing, signature),
        (one.identity_public, "b", sealing, signature),
        (one.identity_public, "a", two.sealing.public(), signature),
        (one.identity_public, "a", sealing, bytes(64)),
        (one.identity_public, "a", sealing, b""),
        (bytes(31), "a", sealing, signature),
    ):
        with pytest.raises(VerificationError, match="not signed by its identity key"):
            verify_sealing_key(identity, name, key, signed)


def test_subjects_have_one_spelling() -> None:
    subject = Subject("retina", Role.SILO, "hospital-a")
    assert subject.uri == "feddrm://retina/silo/hospital-a"
    assert Subject.parse(subject.uri) == subject
    for uri in (
        "",
        "feddrm://retina/silo/hospital-a/",
        "feddrm://retina/silo/hospital-a\n",
        "feddrm://retina/silo/",
        "feddrm://retina//hospital-a",
        "feddrm://retina/silo/../operator",
        "feddrm://retina/admin/hospital-a",
        "feddrm://retina/SILO/hospital-a",
        "FEDDRM://retina/silo/hospital-a",
        "feddrm://retina/silo/Hospital",
        "feddrm://retina/silo/-a",
        "feddrm://retina/silo/hospital%2da",
        "feddrm://retina/silo/hospital-a?x",
        "feddrm://user@retina/silo/hospital-a",
        "https://retina/silo/hospital-a",
        "feddrm://retina/silo/" + "a" * 33,
    ):
        with pytest.raises(MalformedError):
            Subject.parse(uri)


def test_keys_are_private_complete_and_never_overwritten(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    init_member(directory, "hospital-a", Role.SILO)
    files = sorted(path.name for path in (directory / "keys").iterdir())
    assert files == ["identity.key", "sealing.key", "tls.key"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (directory / "keys").iterdir())
    before = {path.name: path.read_bytes() for path in (directory / "keys").iterdir()}
    with pytest.raises(InputError, match="exists already and is not overwritten"):
        init_member(directory, "hospital-a", Role.SILO)
    assert before == {path.name: path.read_bytes() for path in (directory / "keys").iterdir()}


def test_exposed_swapped_and_damaged_keys_are_refused(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    init_member(directory, "hospital-a", Role.SILO)
    keys = directory / "keys"
    for name in ("tls.key", "identity.key", "sealing.key"):
        (keys / name).chmod(0o640)
        with pytest.raises(NotAuthorisedError, match="chmod 600"):
            load_keys(directory, Role.SILO)
        (keys / name).chmod(0o600)
        whole = (keys / name).read_bytes()
        for damaged in (
            b"",
            whole[: len(whole) // 2],
            whole[len(whole) // 2 :],
            b"\xff\xfe",
            whole.replace(b"KEY", b"K3Y"),
        ):
            (keys / name).write_bytes(damaged)
            with pytest.raises(InputError, match=r"not a key that feddrm wrote, or is damaged\. Restore") as caught:
                load_keys(directory, Role.SILO)
            # Nothing of the file may come along in a chained error.
            assert caught.value.__cause__ is None
            assert caught.value.__suppress_context__
        (keys / name).write_bytes(whole)
    shutil.copy(keys / "identity.key", keys / "tls.key")
    with pytest.raises(InputError, match=r"tls\.key is not a key"):
        load_keys(directory, Role.SILO)
