"""What is fuzzed: each target takes bytes and raises nothing, unless a decoder is wrong. To call one takes no fuzzer.

A target is a decoder of bytes that a stranger may choose. It may refuse them with the error of its package and nothing
else; what it accepts must come out of the encoder as it went in, or, where more than one encoding is allowed, mean the
same again. Signed documents are signed here by a known key, so that the fuzzer gets behind the signature.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

TESTS = Path(__file__).resolve().parents[1]
for folder in (TESTS / "fuzz", TESTS / "unit/secagg", TESTS / "unit/contract", TESTS / "vectors"):
    sys.path.append(str(folder))

import fuzz_seeds as seeds  # noqa: E402

from feddrm.contract import codec, codec_operator, labels  # noqa: E402
from feddrm.contract.codec_records import OneOf, Record  # noqa: E402
from feddrm.contract.documents import canonical, parse_body  # noqa: E402
from feddrm.contract.errors import FeddrmError, MalformedError, VerificationError  # noqa: E402
from feddrm.contract.kit import FederationRoot, KitBody, verify_kit  # noqa: E402
from feddrm.contract.plan import Plan  # noqa: E402
from feddrm.contract.release import Statement  # noqa: E402
from feddrm.contract.request import Request, verify_request  # noqa: E402
from feddrm.contract.roster import Roster, verify_roster  # noqa: E402
from feddrm.contract.rounds import Ack, Lost, verify_ack  # noqa: E402
from feddrm.contract.signed import Signed, sign  # noqa: E402
from feddrm.contract.signed_plan import verify_plan  # noqa: E402
from feddrm.contract.tickets import Ticket  # noqa: E402
from privacy.bundle import parse_bundle  # noqa: E402
from privacy.canonical import canonical_json, parse_canonical  # noqa: E402
from privacy.errors import LedgerFault, UnaskedFault  # noqa: E402
from privacy.errors import MalformedError as MalformedLeafError  # noqa: E402
from privacy.leaves import Record as Leaf  # noqa: E402
from privacy.note import open_head  # noqa: E402
from privacy.witness import check_fork, check_proof  # noqa: E402
from secagg.bodies import Abort, Consistency, Keys, Masked, Publish, Shares, Unmask  # noqa: E402
from secagg.errors import UnsoundError, WireError  # noqa: E402
from secagg.evidence import judge  # noqa: E402
from secagg.exhibits import decode_exhibit, encode_exhibit  # noqa: E402
from secagg.session import Announcement  # noqa: E402
from secagg.vector import decode_sum  # noqa: E402
from secagg.wire import Reader  # noqa: E402

OPERATOR = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
OPERATOR_KEY = OPERATOR.public_key().public_bytes_raw()
BODIES = (Announcement, Keys, Shares, Masked, Consistency, Unmask, Publish, Abort)
DOCUMENTS = (Plan, Roster, KitBody, FederationRoot, Statement, Ack, Lost, Ticket, Request)
CONVERTERS = tuple(
    value
    for name, value in sorted({**vars(codec), **vars(codec_operator)}.items())
    if name.isupper() and isinstance(value, Record | OneOf)
)


def bodies(data: bytes) -> None:
    """R0 to R6 and ABORT: the first byte says which."""
    if not data:
        return
    kind, body = BODIES[data[0] % len(BODIES)], data[1:]
    try:
        value = kind.decode(body)
    except (WireError, UnsoundError):
        return
    assert value.encode() == body, "a second encoding"


def wire(data: bytes) -> None:
    """The fields that bodies are made of, and a published sum."""
    reader = Reader(data)
    with contextlib.suppress(WireError):
        reader.names()
        reader.hashes()
        reader.frame()
        reader.text(100)
        reader.truth()
        reader.end()
    with contextlib.suppress(WireError):
        decode_sum(data, len(data) // 8, 1)


def evidence(data: bytes) -> None:
    """Exhibits and the judge: it raises nothing, and no bytes convict an honest silo."""
    case = seeds.case()
    guilty = judge(data, case.announce, case.members).guilty
    assert guilty in ("", case.guilty), f"{guilty} is honest"
    try:
        exhibit = decode_exhibit(data)
    except WireError:
        return
    assert encode_exhibit(exhibit) == data, "a second encoding"


def messages(data: bytes) -> None:
    """The protobuf messages of the contract: the first byte says which."""
    if not data:
        return
    converter: Any = CONVERTERS[data[0] % len(CONVERTERS)]
    try:
        value = converter.decode(data[1:])
    except MalformedError:
        return
    assert converter.decode(converter.encode(value)) == value, "it changes on its way"


def documents(data: bytes) -> None:
    """The bodies of signed documents: the first byte says which."""
    if not data:
        return
    model, body = DOCUMENTS[data[0] % len(DOCUMENTS)], data[1:]
    try:
        document = parse_body(body, model, what="The document")
    except MalformedError:
        return
    whole, given = json.loads(canonical(document)), json.loads(body)
    assert canonical(parse_body(canonical(document), model, what="It")) == canonical(document), "it is not stable"
    assert _within(given, whole), "a second encoding"


def _within(given: Any, whole: Any) -> bool:
    """Whether a document says what was given, and beyond that only what was left out, by default."""
    if isinstance(given, dict) and isinstance(whole, dict):
        return all(key in whole and _within(value, whole[key]) for key, value in given.items())
    if isinstance(given, list) and isinstance(whole, list):
        return len(given) == len(whole) and all(map(_within, given, whole))
    return type(given) is type(whole) and bool(given == whole)


def envelopes(data: bytes) -> None:
    """Signed documents as text, and what is opened behind a good signature."""
    with contextlib.suppress(MalformedError):
        signed = Signed.from_json(data)
        assert Signed.from_json(signed.to_json()) == signed
        with contextlib.suppress(FeddrmError):
            verify_kit(signed, "0" * 64)
    for label, opens in (
        (labels.ROSTER, lambda s: verify_roster(s, federation="retina", operator=OPERATOR_KEY)),
        (labels.PLAN, lambda s: verify_plan(s, federation="retina", operator=OPERATOR_KEY)),
        (labels.ROUND_ACK, lambda s: verify_ack(s, identity=OPERATOR_KEY)),
        (labels.REQUEST, verify_request),
    ):
        with contextlib.suppress(MalformedError, VerificationError):
            opens(sign(OPERATOR, label, data))


def notes(data: bytes) -> None:
    """C2SP notes, forks and leaves."""
    case = seeds.log()
    with contextlib.suppress(MalformedLeafError):
        head = open_head(data, case.origin, case.key)
        assert open_head(head.note, case.origin, case.key) == head
    with contextlib.suppress(MalformedLeafError):
        check_fork(data, origin=case.origin, key=case.key)
    with contextlib.suppress(MalformedLeafError):
        value = parse_canonical(data)
        assert canonical_json(value) == data, "a second encoding"
    with contextlib.suppress(MalformedLeafError):
        leaf = Leaf.decode(data)
        assert leaf.encode() == data, "a second encoding"


def ledgers(data: bytes) -> None:
    """Exported ledgers and peers' ledger proofs."""
    case = seeds.log()
    with contextlib.suppress(MalformedLeafError):
        parse_bundle(data)
    with contextlib.suppress(LedgerFault, UnaskedFault):
        note = check_proof(
            data,
            origin=case.origin,
            key=case.key,
            witnessed=case.witnessed,
            plan=case.plan,
            stage=1,
            round=1,
            event=case.event,
            model=case.model,
        )
        assert open_head(note, case.origin, case.key).size >= open_head(case.witnessed, case.origin, case.key).size


@dataclass(frozen=True)
class Target:
    """A function to call with any bytes, and valid bytes to begin with."""

    run: Callable[[bytes], None]
    corpus: Callable[[], list[bytes]] = field(repr=False)

    @property
    def name(self) -> str:
        return self.run.__name__


def _documents() -> list[bytes]:
    return [bytes([DOCUMENTS.index(type(value))]) + canonical(value) for value in seeds.documents()]


def _messages() -> list[bytes]:
    found = []
    for value in seeds.messages():
        for index, converter in enumerate(CONVERTERS):
            # A message of another kind is refused when it is written.
            with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
                found.append(bytes([index]) + converter.encode(value))
    return found


@cache
def targets() -> dict[str, Target]:
    """All of them, by name."""
    every = (
        Target(bodies, lambda: [bytes([index]) + body for index, body in seeds.bodies()]),
        Target(wire, lambda: [body for _, body in seeds.bodies()]),
        Target(evidence, seeds.exhibits),
        Target(messages, _messages),
        Target(documents, _documents),
        Target(envelopes, lambda: [canonical(d) for d in seeds.documents()] + seeds.envelopes()),
        Target(notes, seeds.notes),
        Target(ledgers, seeds.ledgers),
    )
    return {target.name: target for target in every}


def damaged(source: bytes, entropy: random.Random) -> bytes:
    """Valid bytes with a few faults, for runs without a fuzzer."""
    data = bytearray(source)
    for _ in range(entropy.randint(1, 4)):
        at = entropy.randint(0, len(data))
        match entropy.randrange(4):
            case 0:
                data[at : at + 1] = entropy.randbytes(1)
            case 1:
                del data[at : at + entropy.randint(1, 30)]
            case 2:
                data[at:at] = data[at : at + entropy.randint(1, 30)]
            case _:
                data[at:at] = entropy.choice([b"\xff" * 4, b"\0", b'"', b"{}", b"[", b"1e999", b"eA=="])
    return bytes(data)
