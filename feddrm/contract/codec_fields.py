"""The kinds of field that messages of several services share."""

from __future__ import annotations

import string

from feddrm.contract.codec_kinds import Bytes, Int, NameField, Sentence, Word

HASH = Bytes(32, 32)
HASH_OR_EMPTY = Bytes(32, 32, or_empty=True)
NAME = NameField()
COUNT = Int(0, (1 << 31) - 1)
VERSION = Int(1, (1 << 53) - 1)
SIZE = Int(0, (1 << 53) - 1)
ROUND = Int(0, 10_000)
STAGE = Int(0, 5)
RELEASE_ID = Word(frozenset("0123456789abcdef"), 16, 16)
REFUSAL = Word(frozenset(string.ascii_lowercase + "-"), 0, 32)
SHORT = Sentence(128)
LONG = Sentence(2000)
