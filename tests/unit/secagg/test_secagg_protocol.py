"""Honest runs: whoever drops out wherever, the survivors and the coordinator agree on exactly the survivors' sum."""

from __future__ import annotations

import numpy as np
import pytest
from secagg_harness import STEPS, Federation, Session

from secagg import labels
from secagg.bodies import Keys, Shares, Unmask
from secagg.dealing import opens
from secagg.errors import Failed
from secagg.hashing import blob_hash
from secagg.wire import Step


def check_sum(session: Session, survivors: tuple[str, ...], opened: tuple[str, ...], receivers: int) -> None:
    words32, words64 = session.federation.total(survivors)
    published = session.published
    assert published.survivors == survivors
    assert published.opened == opened
    assert published.sum == blob_hash(published.frame.attachment)
    np.testing.assert_array_equal(published.words32, words32)
    np.testing.assert_array_equal(published.words64, words64)
    done = 0
    for name in session.sent[Step.UNMASK]:
        verified = session.clients[name].receive(published.frame)
        np.testing.assert_array_equal(verified.words32, words32)
        np.testing.assert_array_equal(verified.words64, words64)
        assert verified.survivors == survivors
        assert verified.sum == published.sum
        done += 1
    assert done == receivers


@pytest.mark.parametrize(("size", "threshold"), [(3, 3), (4, 3), (5, 4), (6, 5), (10, 7)])
def test_everybody_present(size: int, threshold: int) -> None:
    federation = Federation(size=size, threshold=threshold)
    check_sum(federation.start().run(), federation.names, (), size)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("who", [0, 2, 4])
def test_one_silo_drops_out_before_each_step(federation: Federation, step: Step, who: int) -> None:
    victim = federation.names[who]
    session = federation.start().run(lost={step: {victim}})
    in_sum = step in (Step.CONSISTENCY, Step.UNMASK)
    survivors = tuple(name for name in federation.names if in_sum or name != victim)
    opened = (victim,) if step == Step.MASKED else ()
    check_sum(session, survivors, opened, 4)


def test_as_many_dropouts_as_the_threshold_allows_spread_over_steps() -> None:
    federation = Federation(size=10, threshold=7, colluders=3)
    lost = {Step.KEYS: {"silo-0"}, Step.SHARES: {"silo-9"}, Step.MASKED: {"silo-4"}}
    session = federation.start().run(lost=lost)
    survivors = tuple(name for name in federation.names if name not in {"silo-0", "silo-9", "silo-4"})
    check_sum(session, survivors, ("silo-4",), 7)


def test_a_silo_that_vanishes_after_its_masked_input_stays_in_the_sum() -> None:
    federation = Federation(size=6, threshold=4, colluders=1)
    session = federation.start().run(lost={Step.CONSISTENCY: {"silo-1"}, Step.UNMASK: {"silo-2"}})
    check_sum(session, federation.names, (), 4)


@pytest.mark.parametrize("step", STEPS)
def test_one_dropout_more_than_the_threshold_allows_is_no_sum(federation: Federation, step: Step) -> None:
    session = federation.start()
    for earlier in STEPS[: STEPS.index(step)]:
        session.advance(earlier)
    session.collect(step, {"silo-1", "silo-2"})
    assert not session.server.ready
    assert session.server.missing == {"silo-1", "silo-2"}
    with pytest.raises(Failed):
        session.server.close()


def test_the_minimum_cohort_holds_where_it_is_above_the_threshold() -> None:
    federation = Federation(size=5, threshold=4, minimum_cohort=5)
    session = federation.start().run(Step.SHARES)
    session.collect(Step.MASKED, {"silo-3"})
    assert not session.server.ready


def test_only_one_kind_of_share_is_ever_opened_for_a_silo(federation: Federation) -> None:
    """Peers' failure: key and seed shares released together open a survivor's vector."""
    session = federation.start().run(lost={Step.MASKED: {"silo-1"}})
    sid = session.server.session
    for holder, frame in session.sent[Step.UNMASK].items():
        position = federation.names.index(holder)
        for owner, opening in zip(federation.names, Unmask.decode(frame.body).openings, strict=True):
            dealt = Shares.decode(session.sent[Step.SHARES][owner].body).dealt[position]
            key = opens(dealt.key_share, labels.KEY_SHARE, sid, owner, holder, opening)
            seed = opens(dealt.seed_share, labels.SELF_SHARE, sid, owner, holder, opening)
            assert (key, seed) == ((True, False) if owner == "silo-1" else (False, True))


def test_no_share_travels_in_clear_or_reaches_the_coordinator(federation: Federation) -> None:
    """Peers' failure: shares sent to the server in clear let it open everything before anybody agreed."""
    session = federation.start().run(lost={Step.MASKED: {"silo-1"}})
    before = b"".join(
        frame.body + frame.attachment
        for step in (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY)
        for frame in session.sent[step].values()
    )
    for frame in session.sent[Step.UNMASK].values():
        for opening in Unmask.decode(frame.body).openings:
            assert opening.share not in before
            assert opening.salt not in before


def test_every_silo_has_its_own_keys(federation: Federation) -> None:
    """Peers' failure: one secret key shared by all members opens every pair's mask."""
    session = federation.start().run(Step.KEYS)
    bodies = [Keys.decode(frame.body) for frame in session.sent[Step.KEYS].values()]
    assert len({key for body in bodies for key in (*body.transport, body.mask, body.seed)}) == 30


def test_segments_may_be_empty() -> None:
    for words32, words64 in ((0, 3), (3, 0)):
        federation = Federation(words32=words32, words64=words64)
        check_sum(federation.start().run(lost={Step.MASKED: {"silo-0"}}), federation.names[1:], ("silo-0",), 4)


def test_vectors_longer_than_a_chunk_of_keystream() -> None:
    federation = Federation(words32=70_001, words64=20_003)
    check_sum(
        federation.start().run(lost={Step.MASKED: {"silo-3"}}), ("silo-0", "silo-1", "silo-2", "silo-4"), ("silo-3",), 4
    )


def test_two_sessions_of_one_silo_share_no_byte_of_mask(federation: Federation) -> None:
    """Peers' failure: one mask for all rounds shows the difference of two updates."""
    first = federation.start(nonce=b"1" * 32).run(Step.MASKED)
    second = federation.start(nonce=b"2" * 32).run(Step.MASKED)
    a, b = (np.frombuffer(s.sent[Step.MASKED]["silo-0"].attachment, dtype="<u4") for s in (first, second))
    assert np.count_nonzero(a == b) == 0


def test_masks_are_not_scalars(federation: Federation) -> None:
    """Peers' failure: one random scalar added to every entry hides nothing but the mean."""
    session = Federation(words32=4096).start().run(Step.MASKED)
    frame = session.sent[Step.MASKED]["silo-0"]
    plain = session.federation.words("silo-0")[0].astype(np.uint32)
    mask = np.frombuffer(frame.attachment, dtype="<u4", count=4096) - plain
    assert len(np.unique(mask)) > 4090
