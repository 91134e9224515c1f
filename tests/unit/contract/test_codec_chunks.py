"""Blobs in pieces: damaged, missing, foreign and endless ones never pass; a cut transfer resumes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrm.contract.chunks import CHUNK_BYTES, ChunkAssembler, blob_hash, iter_chunks
from feddrm.contract.errors import MalformedError, VerificationError

DATA = bytes(range(256)) * 10


@given(st.binary(min_size=1, max_size=500), st.integers(1, 100))
def test_any_blob_arrives_whole(data: bytes, size: int) -> None:
    assembler = ChunkAssembler(blob_hash(data), limit=500)
    for chunk in iter_chunks(data, size=size):
        assert not assembler.complete
        assembler.add(chunk)
    assert assembler.complete
    assert assembler.data() == data


BIG = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(256)) * (5 * CHUNK_BYTES // 2 // 8192)


def test_a_cut_transfer_resumes_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    first = ChunkAssembler(blob_hash(BIG), limit=len(BIG), path=path)
    for chunk in list(iter_chunks(BIG, size=100_000))[:17]:
        first.add(chunk)
    assert first.held == 1_700_000
    second = ChunkAssembler(blob_hash(BIG), limit=len(BIG), path=path)
    assert second.held == CHUNK_BYTES
    for chunk in iter_chunks(BIG, second.held):
        second.add(chunk)
    assert path.read_bytes() == BIG
    assert [p.name for p in tmp_path.iterdir()] == ["blob"]
    third = ChunkAssembler(blob_hash(BIG), limit=len(BIG), path=path)
    assert third.complete
    assert third.data() == BIG


def test_a_damaged_part_of_full_length_heals(tmp_path: Path) -> None:
    """Nothing would be left to send if all of it counted as held, and the damage would never be found."""
    (tmp_path / "blob.part").write_bytes(b"!" + BIG[1:])
    assembler = ChunkAssembler(blob_hash(BIG), limit=len(BIG), path=tmp_path / "blob")
    assert 0 < assembler.held < len(BIG)
    (last,) = iter_chunks(BIG, assembler.held)
    with pytest.raises(VerificationError, match="hash that names"):
        assembler.add(last)
    for chunk in iter_chunks(BIG, assembler.held):
        assembler.add(chunk)
    assert assembler.data() == BIG


def test_a_part_beyond_the_limit_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "blob.part").write_bytes(BIG)
    assembler = ChunkAssembler(blob_hash(DATA), limit=len(DATA), path=tmp_path / "blob")
    assert (assembler.held, list(tmp_path.iterdir())) == (0, [])


def test_a_kill_between_the_last_byte_and_the_rename_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    (tmp_path / "blob.part").write_bytes(DATA)
    assembler = ChunkAssembler(blob_hash(DATA), limit=len(DATA), path=path)
    assert assembler.complete
    assert path.read_bytes() == DATA


@pytest.mark.parametrize("content", [DATA[:-1] + b"!", DATA + b"!", DATA[:-1]])
def test_a_whole_that_is_not_what_its_name_says_is_fetched_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "blob"
    path.write_bytes(content)
    assembler = ChunkAssembler(blob_hash(DATA), limit=len(DATA), path=path)
    assert (assembler.held, assembler.complete) == (0, False)


def test_a_whole_changed_after_receipt_is_not_handed_out(tmp_path: Path) -> None:
    assembler = ChunkAssembler(blob_hash(DATA), limit=len(DATA), path=tmp_path / "blob")
    for chunk in iter_chunks(DATA):
        assembler.add(chunk)
    (tmp_path / "blob").write_bytes(b"?")
    with pytest.raises(VerificationError, match="was changed"):
        assembler.data()


def test_hostile_chunks() -> None:
    first, second, third, *_ = iter_chunks(DATA, size=100)
    assembler = ChunkAssembler(blob_hash(DATA), limit=len(DATA))
    assembler.add(first)
    for hostile in (
        replace(second, blob=bytes(32)),
        replace(second, size=len(DATA) + 1),
        replace(second, size=len(DATA) - 1),
        replace(second, offset=50),
        third,
    ):
        with pytest.raises(MalformedError):
            assembler.add(hostile)
    with pytest.raises(VerificationError, match="digest"):
        assembler.add(replace(second, data=b"!" * 100))
    assert assembler.held == 100
    assembler.add(first)
    assembler.add(second)
    assert assembler.held == 200
    with pytest.raises(VerificationError, match="not complete"):
        assembler.data()


def test_a_substituted_piece_with_a_right_digest_is_found_at_the_end() -> None:
    *head, last = iter_chunks(DATA, size=1000)
    assembler = ChunkAssembler(blob_hash(DATA), limit=len(DATA))
    for chunk in head:
        assembler.add(chunk)
    forged = bytes(len(last.data))
    with pytest.raises(VerificationError, match="hash that names"):
        assembler.add(replace(last, data=forged, digest=blob_hash(forged)))
    assert (assembler.held, assembler.complete) == (0, False)


def test_a_chunk_that_reaches_beyond_its_blob_is_refused() -> None:
    (only,) = iter_chunks(DATA)
    assembler = ChunkAssembler(blob_hash(DATA), limit=len(DATA))
    with pytest.raises(MalformedError):
        assembler.add(replace(only, size=100))


def test_an_exact_size_is_demanded_where_it_is_known() -> None:
    (only,) = iter_chunks(DATA)
    with pytest.raises(MalformedError):
        ChunkAssembler(blob_hash(DATA), limit=len(DATA) + 1, exact=True).add(only)


def test_an_offset_outside_the_blob_is_refused() -> None:
    for offset in (-1, len(DATA) + 1):
        with pytest.raises(MalformedError):
            next(iter_chunks(DATA, offset))
    assert list(iter_chunks(DATA, len(DATA))) == []
