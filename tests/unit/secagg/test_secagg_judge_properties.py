"""The judge: no combination of what honest silos signed convicts one of them, and no bytes make it fail."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from secagg_honest_session import exhibits, mutated, whole

from secagg.aborts import abort_frame
from secagg.errors import WireError
from secagg.evidence import judge
from secagg.exhibits import decode_exhibit, encode_exhibit


@settings(max_examples=200)
@given(st.data())
def test_evidence_has_one_encoding_and_arbitrary_bytes_raise_nothing_else(data: st.DataObject) -> None:
    exhibit = data.draw(exhibits())
    valid = encode_exhibit(exhibit)
    assert decode_exhibit(valid) == exhibit
    bad = data.draw(mutated(valid))
    try:
        other = decode_exhibit(bad)
    except WireError:
        return
    assert encode_exhibit(other) == bad


@settings(max_examples=600)
@given(exhibits())
def test_nothing_that_honest_silos_signed_convicts_one_of_them(exhibit: Any) -> None:
    session = whole()
    verdict = judge(encode_exhibit(exhibit), session.announce.body, session.federation.members)
    assert verdict.guilty == "", verdict


@settings(max_examples=100)
@given(st.data())
def test_a_judge_raises_nothing_whatever_the_bytes_are(data: st.DataObject) -> None:
    session = whole()
    evidence = data.draw(mutated(encode_exhibit(data.draw(exhibits()))))
    body = data.draw(st.one_of(st.just(session.announce.body), mutated(session.announce.body)))
    members = session.federation.members
    assert judge(evidence, body, members).guilty == ""
    accused = data.draw(st.sampled_from(["", "silo-1", "silo-4"]))
    abort = abort_frame(
        announcement=session.announcement.hash(),
        me="silo-2",
        signer=session.federation.identity["silo-2"],
        released=False,
        reason="judge me",
        blamed=accused,
        evidence=evidence,
    )
    # Whoever signs a false accusation convicts itself, and nobody else.
    assert judge(abort, body, members).guilty in {"", "silo-2"}
