"""The model card of a release with what verifies it, as files of the release's directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator.release import Candidate
from feddrm.contract.card import (
    CARD_FILE,
    CARD_SIGNED_FILE,
    ROSTER_FILE,
    CardStatement,
    Noise,
    card_hash,
    sign_card,
    software,
)
from feddrm.contract.files import atomic_write
from feddrm.contract.operator_messages import NoiseFound
from feddrm.contract.release import Release
from feddrm.contract.signed import Signed
from feddrm.method.card import render_card


@dataclass(frozen=True, slots=True)
class CardFiles:
    """Bytes of the card, of the coordinator's statement about it, and of the roster whose keys verify the release."""

    card: bytes
    signed: bytes
    roster: bytes


def make_card(
    candidate: Candidate, noise: NoiseFound | None, roster: Signed, round_key: Ed25519PrivateKey
) -> CardFiles:
    """Write and sign a card.

    Args:
        noise: what the job's sums were found to hold.
        roster: of the job.
        round_key: the coordinator's.
    """
    release = Release(candidate.plan, candidate.document, candidate.signed, len(candidate.signatures))
    card = render_card(release, noise).encode()
    statement = CardStatement(
        federation=candidate.plan.plan.federation,
        release=release.hash,
        card=card_hash(card),
        software=software(),
        noise=None if noise is None else Noise.of(noise),
    )
    return CardFiles(card, sign_card(statement, round_key).to_json().encode(), roster.to_json().encode())


def read_card(folder: Path) -> CardFiles | None:
    """The files as they were written before, if they were: what the sums held is not read again."""
    try:
        return CardFiles(*((folder / name).read_bytes() for name in (CARD_FILE, CARD_SIGNED_FILE, ROSTER_FILE)))
    except FileNotFoundError:
        return None


def write_card(folder: Path, files: CardFiles) -> None:
    """Put them into a release's directory.

    Raises:
        InputError: they cannot be written.
    """
    for name, data in ((CARD_FILE, files.card), (ROSTER_FILE, files.roster), (CARD_SIGNED_FILE, files.signed)):
        atomic_write(folder / name, data)
