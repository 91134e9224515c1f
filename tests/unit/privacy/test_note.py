from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import MalformedError
from privacy.note import InvalidNoteError, _key_id, open_head, sign_head

ORIGIN = "feddrm/retina/hospital-a"
SIGNER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
KEY = SIGNER.public_key().public_bytes_raw()
ROOT = bytes(range(32))
NOTE = sign_head(ORIGIN, 12, ROOT, SIGNER)


def resigned(text: bytes, name: str = ORIGIN) -> bytes:
    """A note over any text at all, with the right key."""
    blob = base64.b64encode(_key_id(name, KEY) + SIGNER.sign(text)).decode()
    return text + f"\n— {name} {blob}\n".encode()


def test_a_head_survives() -> None:
    head = open_head(NOTE, ORIGIN, KEY)
    assert (head.origin, head.size, head.root, head.note) == (ORIGIN, 12, ROOT, NOTE)
    lines = NOTE.decode().split("\n")
    assert lines[:4] == [ORIGIN, "12", base64.b64encode(ROOT).decode(), ""]
    assert lines[4].startswith(f"— {ORIGIN} ")


def test_the_key_id_is_that_of_the_specification() -> None:
    # The vkey of the example in the documentation of Go's golang.org/x/mod/sumdb/note.
    key = base64.b64decode("ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    assert key[0] == 1
    assert _key_id("PeterNeumann", key[1:]).hex() == "c74f20a3"


def test_another_key_or_log_is_refused() -> None:
    other = Ed25519PrivateKey.from_private_bytes(b"o" * 32).public_key().public_bytes_raw()
    with pytest.raises(InvalidNoteError):
        open_head(NOTE, ORIGIN, other)
    with pytest.raises(InvalidNoteError):
        open_head(NOTE, "feddrm/retina/hospital-b", KEY)
    # Signed by the right key under this log's key name, but the text is another log's.
    with pytest.raises(InvalidNoteError):
        open_head(resigned(NOTE.split(b"\n\n")[0].replace(b"hospital-a", b"hospital-b") + b"\n"), ORIGIN, KEY)


def test_signatures_of_strangers_are_ignored_and_dropped() -> None:
    stranger = b"\xe2\x80\x94 witness.example " + base64.b64encode(bytes(68)) + b"\n"
    assert open_head(NOTE + stranger, ORIGIN, KEY).note == NOTE


def test_a_failing_signature_of_the_known_key_refuses_the_note() -> None:
    forged = f"— {ORIGIN} {base64.b64encode(_key_id(ORIGIN, KEY) + bytes(64)).decode()}\n".encode()
    text, line = NOTE.split(b"\n\n")
    with pytest.raises(InvalidNoteError):
        open_head(text + b"\n\n" + forged + line, ORIGIN, KEY)


@pytest.mark.parametrize(
    "text",
    [
        f"{ORIGIN}\n12\n",
        f"{ORIGIN}\n012\n{base64.b64encode(ROOT).decode()}\n",
        f"{ORIGIN}\n-1\n{base64.b64encode(ROOT).decode()}\n",
        f"{ORIGIN}\n+1\n{base64.b64encode(ROOT).decode()}\n",
        f"{ORIGIN}\n1_2\n{base64.b64encode(ROOT).decode()}\n",
        f"{ORIGIN}\n١٢\n{base64.b64encode(ROOT).decode()}\n",
        f"{ORIGIN}\n1e3\n{base64.b64encode(ROOT).decode()}\n",
        f"{ORIGIN}\n9999999999999999\n{base64.b64encode(ROOT).decode()}\n",
        f"{ORIGIN}\n12\n{base64.b64encode(ROOT[:31]).decode()}\n",
        f"{ORIGIN}\n12\n{base64.b64encode(ROOT).decode()[:-1]}\n",
        f"{ORIGIN}\n12\n{base64.b64encode(ROOT).decode()}\nextension\n",
        f"{ORIGIN}\n12\n\n{base64.b64encode(ROOT).decode()}\n",
        f"{ORIGIN}\n12\n{ROOT.hex()}\n",
        "\n\n\n",
    ],
)
def test_texts_that_are_no_tree_head_are_refused_even_when_signed(text: str) -> None:
    with pytest.raises(MalformedError):
        open_head(resigned(text.encode()), ORIGIN, KEY)


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"\n\n",
        NOTE[:-1],
        NOTE + b"\n",
        NOTE.replace(b"\n\n", b"\n"),
        NOTE.replace("—".encode(), b"-"),
        NOTE.replace("— ".encode(), "—  ".encode()),
        NOTE.replace(b"\n", b"\r\n"),
        NOTE + b"\xff\n",
        NOTE + b"\0\n",
        NOTE + "— name\n".encode(),
        NOTE + "— na+me AAAAAAAA\n".encode(),
        NOTE + "— name AAAA\n".encode(),
        NOTE + "— name !!!!\n".encode(),
        NOTE + "— na\u00a0me AAAAAAAA\n".encode(),
        NOTE + "— name AAAAAAB=\n".encode(),
        NOTE + "— w AAAAAAAA\n".encode() * 16,
        NOTE + b"x" * 9000,
    ],
)
def test_hostile_notes_are_refused(note: bytes) -> None:
    with pytest.raises(MalformedError):
        open_head(note, ORIGIN, KEY)


@given(st.binary(max_size=300))
def test_random_bytes_raise_only_what_is_promised(note: bytes) -> None:
    with pytest.raises(MalformedError):
        open_head(note, ORIGIN, KEY)


@given(st.integers(0, len(NOTE) - 1), st.integers(1, 255))
def test_any_changed_byte_is_refused(place: int, change: int) -> None:
    with pytest.raises(MalformedError):
        open_head(NOTE[:place] + bytes([NOTE[place] ^ change]) + NOTE[place + 1 :], ORIGIN, KEY)


@pytest.mark.parametrize(
    ("origin", "size", "root"),
    [
        ("feddrm/retina", 1, ROOT),
        ("other/retina/a", 1, ROOT),
        ("feddrm/retina/a b", 1, ROOT),
        ("feddrm/retina/a\n", 1, ROOT),
        (ORIGIN, -1, ROOT),
        (ORIGIN, 1, ROOT[:31]),
    ],
)
def test_unsound_heads_are_not_signed(origin: str, size: int, root: bytes) -> None:
    with pytest.raises(MalformedError):
        sign_head(origin, size, root, SIGNER)
