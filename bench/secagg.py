"""Secure aggregation: a silo's and the coordinator's CPU time for one sum, and one mask against its physical limit.

The limit is AES-256-CTR keystream over the same bytes plus one addition over the same bytes, measured in this run.
Signatures, consistency check and verification tags are all on: these are the unmodified state machines.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from os import urandom

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from bench.report import arguments, cpu_seconds, show
from secagg.client import join
from secagg.masks import apply
from secagg.server import open_session
from secagg.session import Announcement

Row = dict[str, int | float]


def announcement(names: tuple[str, ...], words32: int) -> Announcement:
    """A session over all of `names` with the default threshold."""
    digest = bytes(32)
    return Announcement(
        federation="bench",
        plan=digest,
        stage=1,
        round=1,
        attempt=1,
        cohort=names,
        roster=digest,
        model=digest,
        layout=digest,
        words32=words32,
        words64=0,
        value_bound=1 << 20,
        threshold=2 * len(names) // 3 + 1,
        minimum_cohort=3,
        colluders=1,
        parameters=digest,
        deadline_ms=0,
        previous=digest,
        nonce=urandom(32),
    )


def protocol(words32: int, cohort: int, dropouts: int) -> tuple[float, float]:
    """CPU seconds of (one silo, the coordinator) for one sum in which `dropouts` vanish before their masked input."""
    names = tuple(f"silo-{index:03d}" for index in range(cohort))
    signers = {name: Ed25519PrivateKey.generate() for name in names}
    members = {name: signer.public_key().public_bytes_raw() for name, signer in signers.items()}
    round_key = Ed25519PrivateKey.generate()
    vector = np.random.default_rng(0).integers(-(1 << 20), 1 << 20, words32)
    counts = np.zeros(0, dtype=np.int64)
    spent = {"silo": 0.0, "server": 0.0}

    class Clock:
        def __init__(self, who: str) -> None:
            self.who = who

        def __enter__(self) -> None:
            self.start = time.process_time()

        def __exit__(self, *_: object) -> None:
            spent[self.who] += time.process_time() - self.start

    with Clock("server"):
        server, r0 = open_session(announcement(names, words32), round_key, members)
    silos = {}
    for name in names:
        with Clock("silo"):
            silos[name], frame = join(
                r0,
                server_key=round_key.public_key().public_bytes_raw(),
                members=members,
                me=name,
                signer=signers[name],
                entropy=urandom,
                ledger_proof=b"",
            )
        with Clock("server"):
            server.receive(frame)
    with Clock("server"):
        server = server.close()
    for step in ("shares", "masked", "consistency", "unmask"):
        outgoing = server.outgoing
        for name in [name for name in names if name in outgoing]:
            if step == "masked" and name in names[:dropouts]:
                continue
            with Clock("silo"):
                state = silos[name].receive(outgoing[name])
                if step == "shares":
                    state, frame = state.share()
                elif step == "masked":
                    state, frame = state.mask(vector, counts)
                else:
                    state, frame = state
                silos[name] = state
            with Clock("server"):
                server.receive(replace(frame))
        with Clock("server"):
            server = server.close()
    expected = vector * (cohort - dropouts)
    for name in names[dropouts:]:
        with Clock("silo"):
            verified = silos[name].receive(server.frame)
        assert np.array_equal(verified.words32, expected)
    return spent["silo"] / (cohort - dropouts), spent["server"]


def mask(words32: int) -> tuple[float, float]:
    """CPU seconds of one mask, and of the keystream and the addition alone, over the same number of u32 words."""
    key = urandom(32)
    target = np.zeros(words32, dtype="<u4")
    chunk = 128 << 10
    zeros, buffer = bytes(chunk), bytearray(chunk)
    words = np.frombuffer(buffer, dtype="<u4")

    def limit() -> None:
        cipher = Cipher(AES256(key), CTR(bytes(16))).encryptor()
        for start in range(0, words32, len(words)):
            part = target[start : start + len(words)]
            cipher.update_into(memoryview(zeros)[: part.nbytes], memoryview(buffer)[: part.nbytes])
            np.add(part, words[: len(part)], out=part)

    return cpu_seconds(lambda: apply(target, [key], []), 15), cpu_seconds(limit, 15)


def main(argv: Sequence[str] | None = None) -> None:
    """Print one row for every vector length, cohort and number of dropouts."""
    options = arguments(argv, "Secure aggregation, CPU seconds")
    rows: list[Row] = []
    for words32 in (100_000,) if options.quick else (100_000, 1_000_000):
        mask_seconds, limit_seconds = mask(words32)
        for cohort, dropouts in ((5, 0), (6, 1), (10, 1), (20, 2)):
            silo, server = protocol(words32, cohort, dropouts)
            rows.append(
                {
                    "n": words32,
                    "cohort": cohort,
                    "dropouts": dropouts,
                    "client_s": silo,
                    "server_s": server,
                    "mask_s": mask_seconds,
                    "mask_limit_s": limit_seconds,
                    "mask_over_limit": mask_seconds / limit_seconds,
                }
            )
    show(rows, "Secure aggregation: CPU seconds for one sum", options.format)


if __name__ == "__main__":
    main()
