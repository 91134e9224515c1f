"""A second implementation, which knows the documents and not the code, makes the very messages of the frozen files."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from vectors_reference import Json, Session

HERE = Path(__file__).resolve().parent


def sessions() -> list[Any]:
    found = []
    for path in sorted((HERE / "frozen").glob("k*.json")):
        document = json.loads(path.read_text())
        found += [pytest.param(document, one, id=f"{path.stem}-{i}") for i, one in enumerate(document["sessions"])]
    return found


@pytest.mark.parametrize(("document", "expected"), sessions())
def test_a_second_implementation_makes_the_same_messages_and_keys(document: Json, expected: Json) -> None:
    session = Session(document, expected)
    session.run()
    for made, frozen in zip(session.messages, expected["messages"], strict=True):
        for field in frozen:
            assert made[field] == frozen[field], f"{frozen['step']} of {frozen['sender'] or 'the coordinator'}: {field}"
        assert made.keys() == frozen.keys()
    values = expected["values"]
    assert (session.announced.hex(), session.sid.hex()) == (values["announced"], values["session"])
    assert (session.u1, session.u2, session.u3) == (values["u1"], values["u2"], values["u3"])
    assert session.transcript.hex() == values["transcript"]
    assert values["agreement"] in (session.agreement.hex(), None)
    assert {silo: [str(tag) for tag in tags] for silo, tags in session.tag.items()} == values["tags"]
    keys = {(entry["label"], tuple(entry["context"])): entry["key"] for entry in values["keys"]}
    assert {place: key.hex() for place, key in session.keys.items()} == keys
    if "sum" in values:
        assert [str(tag) for tag in session.tag_sums] == values["sum"]["tags"]


def test_it_is_written_without_the_packages() -> None:
    """What it shares with them is hash functions, curves and ciphers of the same library."""
    imported = set()
    trees = [ast.parse((HERE / file).read_text()) for file in ("vectors_reference.py", "vectors_reference_tools.py")]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert imported == {
        "__future__",
        "blake3",
        "hashlib",
        "hmac",
        "collections",
        "typing",
        "numpy",
        "cryptography",
        "vectors_reference_tools",
    }
