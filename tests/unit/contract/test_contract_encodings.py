"""A signed value has one text. Found by fuzzing: base64 decoders read several texts as the same bytes."""

from __future__ import annotations

import pytest

from feddrm.contract.documents import Base64, canonical, parse_body
from feddrm.contract.errors import MalformedError
from feddrm.contract.names import Document


class Letter(Document):
    content: Base64


def test_base64_has_one_text() -> None:
    body = b'{"content":"eA=="}'
    assert parse_body(body, Letter, what="The letter").content == b"x"
    assert canonical(Letter(content=b"x")) == body


@pytest.mark.parametrize("text", ["eB==", "eA==eA==", "eA", "eA=", "eA===", "e A==", "e-==", "\\u00e9A==", "="])
def test_every_other_text_is_refused(text: str) -> None:
    body = b'{"content":"' + text.encode() + b'"}'
    with pytest.raises(MalformedError):
        parse_body(body.replace(b"\\u00e9", "é".encode()), Letter, what="The letter")
