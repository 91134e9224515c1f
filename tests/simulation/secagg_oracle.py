"""What may never happen, checked on everything that silos and coordinators really sent.

The oracle knows all frames, all vectors, and which silos lie, so it judges what the worst coordinator could open, not
what the simulated one did: a liar's shares count as released in every session that it was dealt shares in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from secagg import labels
from secagg.bodies import Abort, Opening, Publish, Shares, Unmask
from secagg.dealing import opens
from secagg.server import Published
from secagg.session import Announcement
from secagg.wire import Frame


@dataclass
class Oracle:
    """`names` in roster order, `liars` among them; `outcomes` counts how the runs of a whole test went."""

    names: tuple[str, ...]
    liars: frozenset[str]
    outcomes: Counter[str]
    dealt: dict[tuple[bytes, str], Shares] = field(default_factory=dict)
    masked: set[tuple[bytes, str]] = field(default_factory=set)
    unmasked: dict[tuple[bytes, str], bytes] = field(default_factory=dict)
    agreed: dict[bytes, tuple[str, ...]] = field(default_factory=dict)
    never: set[tuple[bytes, str]] = field(default_factory=set)
    holders: dict[tuple[bytes, str, bytes], set[str]] = field(default_factory=lambda: defaultdict(set))
    exposed: dict[tuple[int, str], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    sums: dict[int, dict[tuple[bytes, bytes], Published]] = field(default_factory=lambda: defaultdict(dict))

    def left_shares(self, frame: Frame) -> None:
        """An R2 left a silo."""
        body = Shares.decode(frame.body)
        self.dealt[body.session, frame.sender] = body

    def left_masked(self, session: bytes, silo: str) -> None:
        """An R3 left a silo."""
        self.masked.add((session, silo))

    def left_abort(self, frame: Frame) -> None:
        """An honest silo's last word left it."""
        body = Abort.decode(frame.body)
        if not body.released:
            self.never.add((body.announcement, frame.sender))

    def left_unmask(
        self, announcement: Announcement, u1: tuple[str, ...], u2: tuple[str, ...], u3: tuple[str, ...], frame: Frame
    ) -> None:
        """An R5 left an honest silo, which was shown these sets."""
        body = Unmask.decode(frame.body)
        earlier = self.unmasked.setdefault((body.session, frame.sender), frame.body)
        assert earlier == frame.body, "two different R5 of one session"
        assert (announcement.hash(), frame.sender) not in self.never, "released what it said that it never would"
        assert self.agreed.setdefault(body.session, u3) == u3, "released shares for two survivor sets of one session"
        assert len(body.openings) == len(u2)
        for owner, opening in zip(u2, body.openings, strict=True):
            kind = self.kind(body.session, owner, frame.sender, u1, opening)
            assert kind == (labels.SELF_SHARE if owner in u3 else labels.KEY_SHARE), "a share of the wrong kind"
            self.holders[body.session, owner, kind].add(frame.sender)
            self.check_owner(announcement, body.session, owner, len(self.liars.intersection(u1)))

    def kind(self, session: bytes, owner: str, holder: str, u1: tuple[str, ...], opening: Opening) -> bytes:
        """Which one secret the share belongs to, by what its owner signed, not by what the holder says."""
        entry = self.dealt[session, owner].dealt[u1.index(holder)]
        kinds = [
            label
            for label, expected in ((labels.SELF_SHARE, entry.seed_share), (labels.KEY_SHARE, entry.key_share))
            if opens(expected, label, session, owner, holder, opening)
        ]
        assert len(kinds) == 1, "a share that its owner never dealt"
        return kinds[0]

    def check_owner(self, announcement: Announcement, session: bytes, owner: str, liars: int) -> None:
        """Never both masks of one vector; and of one round, never the vector in two sums."""
        if owner in self.liars:
            return
        seed, key = (
            len(self.holders[session, owner, kind] - self.liars) + liars >= announcement.threshold
            for kind in (labels.SELF_SHARE, labels.KEY_SHARE)
        )
        assert not (seed and key), f"both masks of {owner} can be opened"
        if seed and (session, owner) in self.masked:
            sessions = self.exposed[announcement.round, owner]
            sessions.add(session)
            assert len(sessions) == 1, f"the vector of {owner} can be opened in two sums"

    def blamed(self, guilty: str, trick: str, error: Exception | None) -> None:
        """Evidence was judged. A forked coordinator may think that a silo signed something odd; it convicts nobody."""
        if guilty not in self.liars:
            raise AssertionError(f"{guilty} is honest and was found guilty") from error
        self.outcomes["liars convicted"] += 1
        self.outcomes[f"convicted: {trick or 'denial'}"] += 1

    def left_sum(self, announcement: Announcement, published: Published) -> None:
        """A coordinator published. Silo i contributes 2**i, so the sum itself tells who is in it, and how often."""
        number = announcement.round
        sums = self.sums[number]
        key = (Publish.decode(published.frame.body).session, published.sum)
        again = key in sums
        sums[key] = published
        assert len(sums) == 1, "two sums of one round"
        expected = [0, 0, 0, 0]
        for name in published.survivors:
            value = 1 << self.names.index(name)
            expected = [
                a + b for a, b in zip(expected, (value, -value, value * (number + 1), value << 30), strict=True)
            ]
        assert published.words32.tolist() == expected[:3]
        assert published.words64.tolist() == expected[3:]
        assert len(published.survivors) >= max(announcement.threshold, announcement.minimum_cohort)
        assert set(published.survivors) <= set(announcement.cohort)
        assert not set(published.opened) & set(published.survivors)
        self.outcomes["published"] += not again
        self.outcomes["published after a retry"] += announcement.attempt > 1 and not again
        self.outcomes["published with dropouts"] += bool(published.opened) and not again
        self.outcomes["published twice alike"] += again

    def verified(self, name: str, number: int, verified: Any) -> None:
        """A silo accepted a sum."""
        published = self.sums[number][verified.session, verified.sum]
        assert verified.survivors == published.survivors
        assert verified.words32.tolist() == published.words32.tolist()
        assert verified.words64.tolist() == published.words64.tolist()
        assert name in published.survivors
        self.outcomes["verified"] += 1
