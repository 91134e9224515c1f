"""Failures of other systems' secret sharing, each as the attack that it allowed; see test_peers_failures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from secagg_attacker import Vector, ready_states, small
from secagg_harness import Federation, Session

from secagg.bodies import Keys, Unmask
from secagg.checks import seed_commitment
from secagg.errors import WireError
from secagg.keys import KeyPair
from secagg.pairing import own_streams
from secagg.shamir import combine, lagrange_at_zero
from secagg.vector import Segments
from secagg.wire import Step

# Key and seed shares released together


def opened(session: Session, openings: Mapping[str, Iterable[bytes]]) -> dict[str, set[str]]:
    """Whose seed and whose mask key t shares of each owner give, as the coordinator finds out: by trying both."""
    found: dict[str, set[str]] = {}
    weights = lagrange_at_zero(range(1, session.announcement.threshold + 1))
    for owner, shares in openings.items():
        body = Keys.decode(session.sent[Step.KEYS][owner].body)
        kinds = found.setdefault(owner, set())
        try:
            secret = combine(weights, list(shares)[: len(weights)])
        except WireError:
            continue
        if seed_commitment(session.announcement.hash(), owner, secret) == body.seed:
            kinds.add("seed")
        if KeyPair.from_private(secret).public == body.mask:
            kinds.add("key")
    return found


def bare(session: Session, owner: str, seed: bytes, private: bytes) -> Vector:
    """A silo's vector from its masked one, given both of its secrets."""
    publics = {name: Keys.decode(frame.body).mask for name, frame in session.sent[Step.KEYS].items()}
    secrets = {name: KeyPair.from_private(private).agree(key) for name, key in publics.items() if name != owner}
    masks = own_streams(session.server.session, owner, session.federation.names, seed, secrets)
    masks.add, masks.subtract = masks.subtract, masks.add
    segments = Segments(session.announcement.words32, session.announcement.words64)
    segments.add(session.sent[Step.MASKED][owner].attachment)
    masks.apply(segments)
    return segments.words32.copy()


def test_key_and_seed_shares_are_never_released_together() -> None:
    """Implementations answer 'send me shares of this silo' for both kinds, or for whoever is asked for.

    It exposes single updates: with b_u and s_u of one silo its masked vector is bare. Here silo-4's vector arrives
    after it was declared dropped, so its mask key is opened while the coordinator holds its vector.
    """
    session = Federation().start().run(Step.SHARES)
    secrets = ready_states(session)
    session.respond(Step.MASKED, "silo-4")
    session.advance(Step.MASKED, {"silo-4"})
    session.advance(Step.CONSISTENCY, {"silo-4"})
    held = {name: session.clients[name]._data.masked.held for name in session.server.expected}
    session.advance(Step.UNMASK, {"silo-4"})

    frames = [session.sent[Step.UNMASK][name] for name in session.federation.names[:4]]
    bodies = [Unmask.decode(frame.body) for frame in frames]
    real = {
        owner: [body.openings[index].share for body in bodies] for index, owner in enumerate(session.federation.names)
    }
    assert opened(session, real) == {f"silo-{index}": {"seed"} for index in range(4)} | {"silo-4": {"key"}}

    weights = lagrange_at_zero(range(1, 5))
    key = combine(weights, real["silo-4"])
    update = session.federation.words("silo-4")[0].astype(np.uint32)
    assert not small(bare(session, "silo-4", bytes(32), key), session.announcement.value_bound)

    both = opened(session, {"silo-4": [held[name]["silo-4"].seed.share for name in held]})
    assert both == {"silo-4": {"seed"}}
    seed = combine(weights, [held[name]["silo-4"].seed.share for name in held])
    assert seed == secrets["silo-4"].seed
    np.testing.assert_array_equal(bare(session, "silo-4", seed, key), update)


# Shares sent to the server in clear


def reconstruct(pieces: list[bytes], commitment: bytes, announced: bytes, owner: str, threshold: int) -> bool:
    """Whether what one silo dealt to those at positions 2, 3, ... gives its seed, wherever the shares stand in it."""
    weights = lagrange_at_zero(range(2, threshold + 2))
    for offset in range(len(pieces[0]) - 65):
        try:
            secret = combine(weights, [piece[offset : offset + 66] for piece in pieces[:threshold]])
        except WireError:
            continue
        if seed_commitment(announced, owner, secret) == commitment:
            return True
    return False


def test_the_coordinator_cannot_read_the_shares_that_it_relays() -> None:
    """Frameworks send shares to the server to pass on, some of them as they are.

    It exposes every update: the server needs t shares of a silo, and K - 1 pass through its hands.
    """
    federation = Federation()
    session = federation.start().run(Step.SHARES)
    held = {name: state.held for name, state in ready_states(session).items()}
    announced = session.announcement.hash()
    seed = Keys.decode(session.sent[Step.KEYS]["silo-0"].body).seed

    sealed = [session.server.outgoing[name][0].attachment for name in federation.names[1:]]
    assert not reconstruct(sealed, seed, announced, "silo-0", 4)
    mine = [held[name]["silo-0"] for name in federation.names[1:]]
    clear = [b"header" + one.seed.share + one.seed.salt + one.key.share + one.key.salt for one in mine]
    assert reconstruct(clear, seed, announced, "silo-0", 4)

    session.advance(Step.MASKED, {"silo-4"})
    session.advance(Step.CONSISTENCY, {"silo-4"})
    session.advance(Step.UNMASK, {"silo-4"})
    for step in (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY, Step.UNMASK):
        traffic = b"".join(frame.body + frame.attachment for frame in session.sent[step].values())
        for holder, owners in held.items():
            for owner, one in owners.items():
                released = step == Step.UNMASK and holder != "silo-4"
                assert (one.seed.share in traffic) == (released and owner != "silo-4")
                assert (one.key.share in traffic) == (released and owner == "silo-4")
