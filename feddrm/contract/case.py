"""A piece of evidence against a silo as one file: what was signed, and the announcement that it is about.

Who is guilty the file does not say; `secagg.evidence.judge` finds it from these bytes and the roster's keys.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from typing import Final

from feddrm.contract.errors import MalformedError
from secagg.errors import WireError
from secagg.wire import Frame, Step

FORMAT: Final = "feddrm evidence 1"
MAXIMUM_CASE: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """Evidence with its announcement.

    Args:
        announcement: the body of R0.
        evidence: bytes of an exhibit (secagg.exhibits), or a whole signed abort with its evidence attached.
        roster: the signed roster that R0 names, in its text form, or empty where it is kept elsewhere.
    """

    announcement: bytes
    evidence: bytes | Frame = field(repr=False)
    roster: str = ""

    def to_json(self) -> str:
        """The file's text."""
        document: dict[str, str] = {"format": FORMAT, "announcement": _encode(self.announcement), "roster": self.roster}
        if isinstance(self.evidence, Frame):
            document |= {
                "silo": self.evidence.sender,
                "abort": _encode(self.evidence.body),
                "signature": _encode(self.evidence.signature),
                "exhibit": _encode(self.evidence.attachment),
            }
        else:
            document["exhibit"] = _encode(self.evidence)
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: bytes) -> Case:
        """Read a file; nothing is verified.

        Raises:
            MalformedError: not of this form.
        """
        try:
            raw = json.loads(text)
            if raw.get("format") != FORMAT or not all(isinstance(value, str) for value in raw.values()):
                raise MalformedError(f"This is not a {FORMAT}.")
            names = set(raw) - {"format", "announcement", "roster", "exhibit"}
            announcement, exhibit = _decode(raw["announcement"]), _decode(raw["exhibit"])
            if not names:
                return cls(announcement, exhibit, raw["roster"])
            if names != {"silo", "abort", "signature"}:
                raise MalformedError(f"A {FORMAT} has other fields.")
            frame = Frame(Step.ABORT, raw["silo"], _decode(raw["abort"]), _decode(raw["signature"]), exhibit)
            return cls(announcement, frame, raw["roster"])
        except (ValueError, KeyError, AttributeError, RecursionError, WireError) as error:
            raise MalformedError(f"This is not a {FORMAT}.") from error


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise MalformedError("A field is not base64.") from error
