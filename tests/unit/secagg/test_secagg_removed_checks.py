"""Checks whose removal no other test noticed (tests/mutation), and reads that must not raise anything else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from secagg_harness import Federation
from secagg_proofs import convictions, honest_secret, whole

from secagg import labels
from secagg.bodies import Shares
from secagg.errors import WireError
from secagg.evidence import judge
from secagg.exhibits import decode_exhibit, encode_exhibit
from secagg.wire import Reader


def test_a_reader_never_gives_fewer_bytes_than_asked_for() -> None:
    reader = Reader(b"abc")
    assert reader.fixed(2) == b"ab"
    for size in (2, 1 << 40):
        with pytest.raises(WireError, match="truncated"):
            reader.fixed(size)
    with pytest.raises(WireError, match="truncated"):
        reader.uint(4)
    assert reader.fixed(1) == b"c"
    reader.end()


def test_a_roster_without_an_announced_silo_is_no_roster_to_judge_by() -> None:
    body, evidence, guilty = convictions()[0]
    members = Federation().members
    assert judge(evidence, body, members).guilty == guilty
    for name in members:
        fewer = {other: key for other, key in members.items() if other != name}
        assert judge(evidence, body, fewer).guilty == ""


def test_an_r2_for_too_few_beside_shares_raises_nothing(federation: Federation) -> None:
    """A colluding owner signs an R2 with fewer entries than U1 has members: nobody's share is in it."""
    session = whole(federation)
    true = honest_secret(session, "silo-1")
    body = Shares.decode(true.shares.body)
    for dealt in ((), body.dealt[:1], body.dealt[:-1], (*body.dealt, body.dealt[0])):
        claim = replace(true, shares=federation.sign("silo-1", replace(body, dealt=dealt)))
        assert judge(encode_exhibit(claim), session.announce.body, federation.members).guilty == ""


def test_there_is_no_seventh_kind_of_evidence() -> None:
    for kind in (6, 7, 255):
        with pytest.raises(WireError, match="no evidence of kind"):
            decode_exhibit(labels.EVIDENCE + bytes([kind]))
