"""Failures of other systems' keys, each as the attack that it allowed.

Every test runs its attack against the messages of a real session, where it must fail, and against a small variant that
is broken on purpose, where it must succeed: an attack that never works shows nothing. For shares and vectors see
test_peers_failures_shares and test_peers_failures_vectors.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from secagg_attacker import Vector, ready_states, small
from secagg_harness import Federation, stream

import secagg
from secagg.bodies import Keys, Shares
from secagg.client import join
from secagg.dealing import deal, receive_deal
from secagg.errors import WireError
from secagg.keys import KeyPair
from secagg.masks import Keystream
from secagg.pairing import own_streams
from secagg.vector import Segments
from secagg.wire import Frame, Step

# Pair seeds with 28 bits of entropy

SEED_BITS = 20


def weak_stream(seeds: NDArray[np.uint64], index: int) -> Vector:
    """Word `index` of a fast statistical generator (splitmix64) for many seeds at once."""
    state = seeds + np.uint64((index + 1) * 0x9E3779B97F4A7C15 % 2**64)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (state ^ (state >> np.uint64(31))).astype(np.uint32)


def brute_force(masked: Vector, bound: int) -> list[int]:
    """All seeds under which a masked vector looks like an update."""
    seeds = np.arange(1 << SEED_BITS, dtype=np.uint64)
    for index, word in enumerate(masked):
        plain = (word - weak_stream(seeds, index)).view(np.int32).astype(np.int64)
        seeds = seeds[np.abs(plain) <= bound]
    return [int(seed) for seed in seeds]


def test_pair_seeds_of_few_bits_are_found_by_trying_all_of_them() -> None:
    """Frameworks fold a pair's shared secret into the integer that seeds a library's generator; one keeps 28 bits.

    It exposes every update: whoever sees a masked vector tries all seeds (here 2^20 in well under a second; 2^28 is 256
    times that) until the vector looks like an update. The attacker is a coordinator with one of three silos, so one
    pair mask is all that is left over the victim's vector.
    """
    federation = Federation(size=3, threshold=3, words32=12)
    session = federation.start().run(Step.SHARES)
    states = ready_states(session)
    session.advance(Step.MASKED)
    bound = session.announcement.value_bound
    update = federation.words("silo-0")[0].astype(np.uint32)

    weak = int.from_bytes(states["silo-0"].mask_secrets["silo-1"]) % (1 << SEED_BITS)
    broken = update + np.array([weak_stream(np.array([weak], np.uint64), i)[0] for i in range(12)], np.uint32)
    assert brute_force(broken, bound) == [weak]

    # What R5 opens (b of the victim) and what silo-2 knows (its own pair) is taken off.
    known = own_streams(
        session.server.session, "silo-0", ("silo-0", "silo-2"), states["silo-0"].seed, states["silo-0"].mask_secrets
    )
    known.add, known.subtract = known.subtract, known.add
    segments = Segments(12, session.announcement.words64)
    segments.add(session.sent[Step.MASKED]["silo-0"].attachment)
    known.apply(segments)
    left = segments.words32.copy()
    assert not small(left, bound)
    assert brute_force(left, bound) == []
    for seed in range(1 << 10):
        for key in (seed.to_bytes(32), seed.to_bytes(32, "little"), hashlib.sha256(seed.to_bytes(4)).digest()):
            assert not small(left - Keystream(key).words(12, "<u4"), bound)
    # The attack's bookkeeping is right: the one key that it lacks is what hides the update.
    pair = own_streams(session.server.session, "silo-0", ("silo-0", "silo-1"), bytes(32), states["silo-0"].mask_secrets)
    key = pair.add[b"u32"][1]
    np.testing.assert_array_equal(left - Keystream(key).words(12, "<u4"), update)


def test_every_bit_of_every_secret_counts() -> None:
    """The other side of it: 256 bits go into a stream, and each of them changes about half of it.

    X25519 ignores five bits of a private key (RFC 7748 section 5), which leaves 2^251 keys.
    """

    def distance(one: bytes, other: bytes) -> int:
        return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()

    secret = stream("bits")(32)
    flips = [(int.from_bytes(secret) ^ (1 << bit)).to_bytes(32) for bit in range(256)]
    # The mask keys that a seed and a pair's secret give, by segment: that of the silo itself, then that of the pair.
    for which in (0, 1):
        for segment in (b"u32", b"u64"):
            streams = []
            for value in (secret, *flips):
                masks = own_streams(b"sid", "a", ("a", "b"), value, {"b": value})
                streams.append(Keystream(masks.add[segment][which]).words(64, "<u4").tobytes())
            assert len(set(streams)) == 257
            assert all(800 < distance(streams[0], other) < 1250 for other in streams[1:])
    publics = {KeyPair.from_private(flip).public for flip in [secret, *flips]}
    assert len(publics) == 1 + 251


def test_every_secret_is_drawn_whole_and_no_library_generator_is_used() -> None:
    """32 bytes for every key, seed, salt and tag secret, 66 for every coefficient; used as they are, and once."""
    federation = Recording()
    session = federation.start().run(Step.KEYS)
    for name in federation.names:
        joined = session.clients[name]._data
        assert {joined.seed, joined.mask.private} < set(federation.drawn(name))
    session.advance(Step.SHARES)
    everything = [draw for name in federation.names for draw in federation.drawn(name)]
    assert {len(draw) for draw in everything} == {32, 66}
    # A silo: at least a transport key, a mask key, a seed, two polynomials of degree 3, a tag secret, ten salts.
    assert len(set(everything)) == len(everything) >= 5 * (3 + 2 * 3 + 1 + 10)
    for path in Path(secagg.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [node.attr] if isinstance(node, ast.Attribute) else []
            assert not {name.split(".")[0] for name in names} & {"random", "default_rng", "RandomState"}


class Recording(Federation):
    """A federation that keeps what its silos draw."""

    def join(self, name: str, announce: Frame, salt: object = 0) -> tuple[Any, Frame]:
        source, drawn = stream("recorded", name), self.drawn(name)

        def draw(size: int) -> bytes:
            drawn.append(source(size))
            return drawn[-1]

        return join(
            announce,
            server_key=self.server_key,
            members=self.members,
            me=name,
            signer=self.identity[name],
            entropy=draw,
            ledger_proof=b"proof",
        )

    def drawn(self, name: str) -> list[bytes]:
        draws: dict[str, list[bytes]] = self.__dict__.setdefault("draws", {})
        return draws.setdefault(name, [])


# A secret key that all members share


def test_no_member_reads_or_unmasks_what_passes_between_two_others() -> None:
    """Toolkits hand one key to all members, in a start-up kit or a configuration file.

    It exposes every silo to every other: any member that listens, or gives the key to the coordinator, opens all.
    """
    federation = Federation()
    session = federation.start().run(Step.KEYS)
    keyed = {name: session.clients[name].receive(frames)._data for name, frames in session.server.outgoing.items()}
    session.advance(Step.SHARES)
    own = [*keyed["silo-2"].transport_secrets.values(), *keyed["silo-2"].mask_secrets.values()]
    others = [name for name in federation.names if name != "silo-2"]

    tried = 0
    for recipient in others:
        for frame in session.server.outgoing[recipient]:
            body = Shares.decode(frame.body)
            if frame.sender in (recipient, "silo-2"):
                continue
            for secret in own:
                entry = body.dealt[federation.names.index(recipient)]
                assert not opens_with(body, entry, frame.attachment, recipient, secret)
                tried += 1
    assert tried == 12 * len(own)

    # The same attack where everybody's key is one: the member opens what the first silo dealt to the second.
    common = KeyPair.from_private(b"k" * 32)
    secret = common.agree(common.public)
    dealt = deal(
        session=session.server.session,
        me="silo-0",
        u1=federation.names,
        threshold=4,
        seed=b"b" * 32,
        mask_key=b"s" * 32,
        transport_secrets=dict.fromkeys(federation.names, secret),
        entropy=stream("common"),
    )
    assert opens_with(dealt.body, dealt.body.dealt[1], dealt.ciphertexts[0], "silo-1", secret)

    # Nor is a pair's mask of use to a third: no two pairs have a secret in common, and no two silos a public key.
    pairs = {frozenset((name, other)): secret for name in keyed for other, secret in keyed[name].mask_secrets.items()}
    assert len(set(pairs.values())) == len(pairs) == 10
    bodies = [Keys.decode(frame.body) for frame in session.sent[Step.KEYS].values()]
    assert len({body.mask for body in bodies}) == 5


def opens_with(body: Shares, entry: Any, ciphertext: bytes, recipient: str, secret: bytes) -> bool:
    try:
        receive_deal(body, entry, ciphertext, me=recipient, secret=secret)
    except WireError:
        return False
    return True
