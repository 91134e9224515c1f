"""Sealed queries: what a querier asks a silo and what comes back, unreadable and unforgeable for the relay (design 8).

A request is sealed with HPKE (RFC 9180; KEM MLKEM768-X25519, HKDF-SHA256, ChaCha20-Poly1305) to the silo's sealing key
*from the querier's own roster*. The library offers single-shot base mode only, which authenticates no sender and takes
no associated data: so `info` binds the context, and the plaintext carries the querier's Ed25519 signature over context,
time, features and a fresh response key. The answer is encrypted under a key that only this response key gives, and
signed by the silo over context, request hash and content.

Both plaintexts are padded to powers of two: a ciphertext's length tells the bucket, not the answer.

Layout of a request, integers big-endian: time 8, records 4, width 4, response key 32, features (little-endian float32),
signature 64, zeros. Of an answer: nonce 32 in clear, then encrypted: records 4, classes 4, probabilities (little-endian
float32), signature 64, zeros.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from feddrm.contract import labels
from feddrm.contract.authority import CLOCK_SKEW_MS
from feddrm.contract.errors import InputError, MalformedError, VerificationError
from feddrm.contract.identity import sealing_public_key
from feddrm.contract.seal_tables import (
    MAXIMUM_CLASSES,
    MAXIMUM_WIDTH,
    Array,
    pad,
    probabilities_allowed,
    shape_allowed,
    table,
    unpad,
)
from feddrm.contract.signed import signing_input

Entropy = Callable[[int], bytes]

MAXIMUM_PLAINTEXT: Final = 1 << 20

_REQUEST_HEAD: Final = struct.Struct(">QII32s")
_ANSWER_HEAD: Final = struct.Struct(">II")
_NONCE: Final = 32
_TAG: Final = 16
_REQUEST_BUCKET: Final = 1024
_ANSWER_BUCKET: Final = 256
_SUITE: Final = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_OVERHEAD: Final = KEM.MLKEM768_X25519.enc_length() + _TAG


@dataclass(frozen=True, slots=True)
class AskContext:
    """What both ends know about a request and bind it to.

    Attributes:
        roster_version: the one that the ticket names.
        release: SHA-256 of the release statement's body.
        ticket: feddrm.contract.tickets.ticket_hash.
    """

    federation: str
    querier: str
    silo: str
    roster_version: int
    release: bytes
    ticket: bytes

    def encode(self) -> bytes:
        """Every field with its length before it, so that no two contexts give the same bytes."""
        parts = (
            self.federation.encode(),
            self.querier.encode(),
            self.silo.encode(),
            self.roster_version.to_bytes(8),
            self.release,
            self.ticket,
        )
        return b"".join(len(part).to_bytes(8) + part for part in parts)


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """What the querier keeps to open the answer. `query` is the request's hash, `records` its number of records."""

    context: AskContext
    query: bytes
    records: int
    response_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class OpenedRequest:
    """A request whose signature holds. `features` is float32[records, width]; `query` is the request's hash."""

    context: AskContext
    query: bytes
    issued_ms: int
    features: Array = field(repr=False)
    response_key: bytes = field(repr=False)


def query_hash(sealed: bytes) -> bytes:
    """SHA-256 that names a sealed request (32 bytes); a repeat has the same, which is what replay caches look for."""
    return hashlib.sha256(sealed).digest()


def seal_request(
    features: Array,
    *,
    context: AskContext,
    sealing_key: bytes,
    signer: Ed25519PrivateKey,
    now_ms: int,
    entropy: Entropy = os.urandom,
) -> tuple[bytes, PendingAnswer]:
    """Seal one patient's records to a silo.

    Args:
        features: float32[records, width], all finite.
        sealing_key: the silo's 1216 public bytes from the querier's own roster.
        signer: the querier's identity key.

    Raises:
        InputError: too many records or features for one request, or none.
        MalformedError: the sealing key is unusable.
    """
    values = np.ascontiguousarray(features, dtype="<f4")
    if (
        values.ndim != 2
        or not shape_allowed(len(values), values.shape[1], MAXIMUM_WIDTH)
        or not np.isfinite(values).all()
    ):
        raise InputError(
            f"A query of shape {features.shape} cannot be sealed.", remedy="Ask about one patient at a time."
        )
    response_key = entropy(32)
    body = _REQUEST_HEAD.pack(now_ms, *values.shape, response_key) + values.tobytes()
    signature = signer.sign(_ask_input(context, body))
    plaintext = pad(body + signature, _REQUEST_BUCKET)
    if len(plaintext) > MAXIMUM_PLAINTEXT:
        raise InputError(
            "A query of this many records cannot be sealed.", remedy="Ask about fewer records of a patient."
        )
    sealed = _SUITE.encrypt(plaintext, sealing_public_key(sealing_key), _info(context))
    return sealed, PendingAnswer(context, query_hash(sealed), len(values), response_key)


def open_request(
    sealed: bytes,
    *,
    context: AskContext,
    private_key: MLKEM768X25519PrivateKey,
    querier_key: bytes,
    now_ms: int,
) -> OpenedRequest:
    """Open a request at the silo.

    Args:
        context: with federation and silo the silo's own, querier the one whose `querier_key` is given, and the rest
            from a ticket that was verified.
        querier_key: the querier's Ed25519 key (32 bytes) from the silo's own pinned roster.

    Raises:
        VerificationError: made for another key or context, altered, not signed by this querier, or out of its time.
        MalformedError: it opens and is signed, but is not a request.
    """
    if not _REQUEST_BUCKET + _OVERHEAD <= len(sealed) <= MAXIMUM_PLAINTEXT + _OVERHEAD:
        raise MalformedError(f"A sealed request cannot have {len(sealed)} bytes.")
    try:
        plaintext = _SUITE.decrypt(sealed, private_key, _info(context))
    except (InvalidTag, ValueError) as error:
        raise VerificationError("The sealed request was not made for this silo, ticket and release.") from error
    issued_ms, records, width, response_key = _REQUEST_HEAD.unpack_from(plaintext)
    if not shape_allowed(records, width, MAXIMUM_WIDTH):
        raise MalformedError("A sealed request holds a table of a shape that is not allowed.")
    body, signature = unpad(plaintext, _REQUEST_HEAD.size + 4 * records * width, _REQUEST_BUCKET)
    _check(querier_key, signature, _ask_input(context, body), f"The request is not signed by {context.querier}.")
    if abs(now_ms - issued_ms) > CLOCK_SKEW_MS:
        raise VerificationError("The request is too old, or the clocks differ.", remedy="Check this machine's clock.")
    features = table(body[_REQUEST_HEAD.size :], records, width)
    return OpenedRequest(context, query_hash(sealed), issued_ms, features, response_key)


def seal_answer(
    opened: OpenedRequest, probabilities: Array, *, signer: Ed25519PrivateKey, entropy: Entropy = os.urandom
) -> bytes:
    """Seal and sign an answer at the silo.

    Args:
        probabilities: float32[records, classes] of the silo's own model, each in [0, 1].
        signer: the silo's identity key.

    Raises:
        ValueError: not of that form (a bug of the caller).
    """
    values = np.ascontiguousarray(probabilities, dtype="<f4")
    if values.ndim != 2 or len(values) != len(opened.features) or not probabilities_allowed(values):
        raise ValueError(f"an answer of shape {probabilities.shape} does not fit the request")
    nonce = entropy(_NONCE)
    body = _ANSWER_HEAD.pack(*values.shape) + values.tobytes()
    signature = signer.sign(_answer_input(opened.context, opened.query, nonce, body))
    plaintext = pad(body + signature, _ANSWER_BUCKET)
    return nonce + _answer_cipher(opened.response_key, opened.query, nonce, plaintext, opened.context, seal=True)


def open_answer(pending: PendingAnswer, sealed: bytes, *, silo_key: bytes) -> Array:
    """Open an answer at the querier.

    Args:
        silo_key: the silo's Ed25519 key (32 bytes) from the querier's own pinned roster.

    Returns:
        float32[records, classes], each in [0, 1].

    Raises:
        VerificationError: not an answer to this very request, altered, or not signed by this silo.
        MalformedError: it is, but does not hold what an answer must.
    """
    smallest = _NONCE + _ANSWER_BUCKET + _TAG
    if not smallest <= len(sealed) <= _NONCE + MAXIMUM_PLAINTEXT + _TAG:
        raise MalformedError(f"A sealed answer cannot have {len(sealed)} bytes.")
    nonce, ciphertext = sealed[:_NONCE], sealed[_NONCE:]
    context = pending.context
    try:
        plaintext = _answer_cipher(pending.response_key, pending.query, nonce, ciphertext, context, seal=False)
    except InvalidTag as error:
        raise VerificationError("This is not an answer to the request that was sent.") from error
    records, classes = _ANSWER_HEAD.unpack_from(plaintext)
    if records != pending.records or not shape_allowed(records, classes, MAXIMUM_CLASSES):
        raise MalformedError(f"The answer of {context.silo} is for another number of records.")
    body, signature = unpad(plaintext, _ANSWER_HEAD.size + 4 * records * classes, _ANSWER_BUCKET)
    signed = _answer_input(context, pending.query, nonce, body)
    _check(silo_key, signature, signed, f"The answer is not signed by {context.silo}.")
    probabilities = table(body[_ANSWER_HEAD.size :], records, classes)
    if not probabilities_allowed(probabilities):
        raise MalformedError(f"The answer of {context.silo} holds values that are no probabilities.")
    return probabilities


def _info(context: AskContext) -> bytes:
    return signing_input(labels.SEAL_INFO, context.encode())


def _ask_input(context: AskContext, body: bytes) -> bytes:
    return signing_input(labels.ASK, context.encode() + body)


def _answer_input(context: AskContext, query: bytes, nonce: bytes, body: bytes) -> bytes:
    return signing_input(labels.ANSWER, context.encode() + query + nonce + body)


def _answer_cipher(
    response_key: bytes, query: bytes, nonce: bytes, data: bytes, context: AskContext, *, seal: bool
) -> bytes:
    """A fresh key for every answer, from the response key and 32 random bytes: so the AEAD's own nonce may be fixed
    even if a silo, its replay cache lost, answers one request twice."""
    info = signing_input(labels.ANSWER_KEY, context.encode())
    cipher = ChaCha20Poly1305(HKDF(SHA256(), 32, salt=query + nonce, info=info).derive(response_key))
    return cipher.encrypt(bytes(12), data, query) if seal else cipher.decrypt(bytes(12), data, query)


def _check(key: bytes, signature: bytes, signed: bytes, message: str) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError) as error:
        raise VerificationError(message) from error
