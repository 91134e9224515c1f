"""What makes a model card more than a file: the coordinator signs its hash, and with it all that it says beside what
the signed plan and the signed release statement say.

From plan, statement and this document anybody writes the same card (feddrm.method.card). Where that gives the same
bytes, every line in it rests on signatures: of the operator, of the hospitals, and the noise found in the sums on the
coordinator's alone. Where it does not, the text is the coordinator's word and is not verified, whatever version is said
to have written it.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Final, Literal, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field

from feddrm.contract import labels
from feddrm.contract.documents import Hash, canonical, parse_body
from feddrm.contract.errors import VerificationError
from feddrm.contract.names import Document, Name
from feddrm.contract.operator_messages import NoiseFound
from feddrm.contract.signed import Signed, sign, signers

CARD_FILE: Final = "card.md"
CARD_SIGNED_FILE: Final = "card.signed"
ROSTER_FILE: Final = "roster.signed"
_COUNT = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]


class Noise(Document):
    """`feddrm.contract.messages.NoiseFound`, as it is written down."""

    places: _COUNT
    ratio: Annotated[float, Field(ge=0, le=1e9)]
    chance: Annotated[float, Field(ge=0, le=1)]
    needed: _COUNT
    short: bool

    @classmethod
    def of(cls, found: NoiseFound) -> Self:
        """From a finding."""
        return cls(places=found.places, ratio=found.ratio, chance=found.chance, needed=found.needed, short=found.short)

    def found(self) -> NoiseFound:
        """The finding."""
        return NoiseFound(self.places, self.ratio, self.chance, self.needed, self.short)


class CardStatement(Document):
    """What the coordinator says of a card.

    Attributes:
        release: hash of the release statement.
        card: SHA-256 of the card's bytes.
        software: version that wrote it, by the coordinator's word; another one may put the same into other words. It
            tells an auditor what to check the text with, and excuses no difference.
        noise: found in the sums that the coordinator keeps; None where none could be judged.
    """

    format: Literal["feddrm card 1"] = "feddrm card 1"
    federation: Name
    release: Hash
    card: Hash
    software: Annotated[str, Field(max_length=64)]
    noise: Noise | None


def software() -> str:
    """The version of this installation."""
    try:
        return version("feddrm")
    except PackageNotFoundError:
        return "unknown"


def card_hash(card: bytes) -> bytes:
    """SHA-256 of a card's bytes (32 bytes)."""
    return hashlib.sha256(card).digest()


def sign_card(statement: CardStatement, round_key: Ed25519PrivateKey) -> Signed:
    """Sign it as the coordinator."""
    return sign(round_key, labels.CARD, canonical(statement))


def verify_card(signed: Signed, *, round_key: bytes, release: bytes, card: bytes) -> CardStatement:
    """Check that the coordinator signed a card's bytes as those of a release.

    Args:
        round_key: the coordinator's, from a roster that the operator signed (32 bytes).
        release: hash of the verified release statement (32 bytes).
        card: the card's bytes.

    Raises:
        VerificationError: it did not, or the card was changed since.
        MalformedError: the body is malformed.
    """
    if round_key not in signers(signed, labels.CARD):
        raise VerificationError("The card is not signed by the coordinator's round key.")
    statement = parse_body(signed.body, CardStatement, what="The card's statement")
    if statement.release != release:
        raise VerificationError("The card is another release's.")
    if statement.card != card_hash(card):
        raise VerificationError("The card was changed after the coordinator signed it.")
    return statement
