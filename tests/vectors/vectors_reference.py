"""The protocol a second time, written from docs/secagg.md and README.md alone: it imports nothing of this project.

It makes every message of an honest session from a file's inputs. Where the packages and this disagree, one of them or
the documents are wrong. Plain, slow, without checks: not an implementation to use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from vectors_reference_tools import (
    PRIME,
    SIGNED,
    TAGS,
    Json,
    agree,
    blake,
    derive,
    digest,
    entropy,
    framed,
    keystream,
    label,
    name,
    names,
    public_of,
    sha,
    shamir,
    uint,
)


class Session:
    """One honest session; `who` maps each step to the silos that send it."""

    def __init__(self, document: Json, session: Json) -> None:
        self.document, self.fields = document, session["announcement"]
        self.cohort: list[str] = self.fields["cohort"]
        self.who: Mapping[str, list[str]] = {
            step: [m["sender"] for m in session["messages"] if m["step"] == step] for step in SIGNED
        }
        self.draw = {silo: entropy(entry["label"]) for silo, entry in session["entropy"].items()}
        self.messages: list[Json] = []
        self.values: Json = {}
        self.keys: dict[tuple[str, tuple[str | int, ...]], bytes] = {}

    def send(self, step: str, sender: str, body: bytes, attachment: bytes = b"") -> bytes:
        private = self.document["identities"][sender or "coordinator"]["private"]
        signer = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private))
        signature = signer.sign(framed(label(SIGNED[step]), body))
        message: Json = {"step": step, "sender": sender, "body": body.hex(), "signature": signature.hex()}
        if len(attachment) > 8192:
            message |= {"attachment_blake3": blake(attachment).hex(), "attachment_size": len(attachment)}
        else:
            message["attachment"] = attachment.hex()
        self.messages.append(message)
        return signature

    def key(self, secret: bytes, kind: str, text: str, *context: str | int | bytes) -> bytes:
        """A derived key, which is written down under its name in labels.py."""
        parts = [
            part.encode() if isinstance(part, str) else uint(part, 1) if isinstance(part, int) else part
            for part in context
        ]
        shown = tuple(part.hex() if isinstance(part, bytes) else part for part in context)
        key = derive(secret, text, self.sid, *parts)
        self.keys[kind, shown] = key
        return key

    def run(self) -> None:
        self.announce()
        self.send_keys()
        self.send_shares()
        self.send_masked()
        self.send_consistency()
        self.send_unmask()
        if self.who["PUBLISH"]:
            self.publish()
        for silo in self.who["ABORT"]:
            reason = b"the coordinator stopped"
            body = self.announced + self.sid + name(silo) + uint(silo in self.who["UNMASK"], 1)
            self.send("ABORT", silo, body + uint(0, 4) + uint(len(reason), 4) + reason + blake(b""))

    def announce(self) -> None:
        f = self.fields
        h = {field: bytes.fromhex(f[field]) for field in f if isinstance(f[field], str) and field != "federation"}
        self.r0 = b"".join(
            [
                name(f["federation"]), h["plan"], uint(f["stage"], 1), uint(f["round"], 4), uint(f["attempt"], 4),
                names(self.cohort), h["roster"], h["model"], h["layout"], uint(f["words32"], 4), uint(f["words64"], 4),
                uint(f["value_bound"], 4), uint(f["threshold"], 2), uint(f["minimum_cohort"], 2),
                uint(f["colluders"], 2), h["parameters"], uint(f["deadline_ms"], 8), h["previous"], h["nonce"],
            ]
        )  # fmt: skip
        self.announced = sha(self.r0)
        self.send("ANNOUNCE", "", self.r0)

    def send_keys(self) -> None:
        self.u1 = [silo for silo in self.cohort if silo in self.who["KEYS"]]
        self.c: dict[tuple[str, str], bytes] = {}
        self.s, self.b = {}, {}
        leaves = []
        for silo in self.u1:
            draw, peers = self.draw[silo], [peer for peer in self.cohort if peer != silo]
            for peer in peers:
                self.c[silo, peer] = draw(32)
            self.s[silo], self.b[silo] = draw(32), draw(32)
            committed = digest("self mask seed commitment", self.announced, silo.encode(), self.b[silo])
            proof = bytes.fromhex(self.document["ledger_proofs"][silo])
            body = self.announced + name(silo) + uint(len(peers), 2)
            body += b"".join(public_of(self.c[silo, peer]) for peer in peers)
            body += public_of(self.s[silo]) + committed + blake(proof)
            leaf = digest("keys leaf", body, self.send("KEYS", silo, body, proof))
            leaves += [silo.encode(), leaf]
        self.sid = digest("session id", self.announced, *leaves)

    def send_shares(self) -> None:
        self.u2 = [silo for silo in self.u1 if silo in self.who["SHARES"]]
        count, t = len(self.u1), self.fields["threshold"]
        self.dealt: dict[tuple[str, str, str], tuple[bytes, bytes]] = {}
        self.g: dict[str, bytes] = {}
        leaves = []
        for silo in self.u2:
            draw = self.draw[silo]
            seeds, keys = shamir(self.b[silo], t, count, draw), shamir(self.s[silo], t, count, draw)
            self.g[silo] = draw(32)
            entries, attachment = b"", b""
            for position, holder in enumerate(self.u1):
                one, other = (seeds[position], draw(32)), (keys[position], draw(32))
                self.dealt["b", silo, holder], self.dealt["s", silo, holder] = one, other
                ciphertext = b""
                if holder != silo:
                    secret = agree(self.c[silo, holder], public_of(self.c[holder, silo]))
                    key = self.key(secret, "TRANSPORT_KEY", "transport key", silo, holder)
                    bound = framed(label("transport associated data"), self.sid, silo.encode(), holder.encode())
                    ciphertext = ChaCha20Poly1305(key).encrypt(bytes(12), b"".join(one + other) + self.g[silo], bound)
                attachment += ciphertext
                place = (self.sid, silo.encode(), holder.encode())
                entries += blake(ciphertext)
                entries += digest("self mask seed share", *place, one[1], one[0])
                entries += digest("mask key share", *place, other[1], other[0])
            committed = digest("tag secret commitment", self.sid, silo.encode(), self.g[silo])
            body = self.sid + name(silo) + committed + uint(count, 2) + entries
            leaves += [silo.encode(), digest("shares leaf", body)]
            self.send("SHARES", silo, body, attachment)
        self.transcript = digest("shares transcript", self.sid, *leaves)
        self.group = self.key(framed(*self.g.values()), "TAG_SECRET", "tag secret", self.transcript)

    def stream(self, kind: str, text: str, secret: bytes, *silos: str) -> tuple[Any, Any, list[int]]:
        """One mask: words32, words64, and a residue for each tag, which the second stream begins with."""
        keys = [self.key(secret, kind, text, *silos, segment) for segment in ("u32", "u64")]
        n, m = self.fields["words32"], self.fields["words64"]
        second = keystream(keys[1], 2 * TAGS + m, "<u8")
        head = second[: 2 * TAGS].tolist()
        return keystream(keys[0], n, "<u4"), second[2 * TAGS :], [head[2 * i] + (head[2 * i + 1] << 64) for i in (0, 1)]

    def words(self, silo: str) -> tuple[Any, Any]:
        found = []
        for part, bound, width in (("words32", self.fields["value_bound"], 4), ("words64", 2**40, 8)):
            value = self.document["inputs"][silo][part]
            if isinstance(value, str):
                stream = hashlib.shake_256(b"feddrm secagg vectors 1/" + value.encode()).digest(
                    width * self.fields[part]
                )
                words = np.frombuffer(stream, dtype=f"<u{width}").astype(np.uint64)
                value = (words % np.uint64(2 * bound + 1)).astype(np.int64) - bound
            found.append(np.array(value, dtype=np.int64))
        return found[0], found[1]

    def tags(self, silo: str) -> list[int]:
        small, large = self.words(silo)
        blocks = [part[at : at + 1024].tolist() for part in (small, large) for at in range(0, len(part), 1024)]
        rows = max(len(block) for block in blocks)
        short = keystream(self.key(self.group, "TAG_WEIGHTS", "tag weights", 0), rows * 8, "<u2") % 2**14
        columns = (short.astype(int) - 2**13).reshape(rows, 8).T.tolist()
        inner = [sum(r * x for r, x in zip(column, block, strict=False)) for block in blocks for column in columns]
        offsets = keystream(self.key(self.group, "TAG_OFFSET", "tag offset", silo), TAGS, "<u8").tolist()
        found = []
        for tag in range(TAGS):
            long = keystream(self.key(self.group, "TAG_WEIGHTS", "tag weights", 1 + tag), len(inner), "<u8").tolist()
            total = sum((word >> 8) * x for word, x in zip(long, inner, strict=True))
            found.append((total + (offsets[tag] >> 8)) % PRIME)
        return found

    def send_masked(self) -> None:
        self.u3 = [silo for silo in self.u2 if silo in self.who["MASKED"]]
        self.masked = {}
        self.tag = {silo: self.tags(silo) for silo in self.u3}
        self.tag_sums = [sum(self.tag[silo][tag] for silo in self.u3) % PRIME for tag in range(TAGS)]
        for at, silo in enumerate(self.u2):
            if silo not in self.u3:
                continue
            small, large = self.words(silo)
            y32 = small.astype(np.uint32)
            y64, tags = large.view(np.uint64), list(self.tag[silo])
            masks = [(1, self.stream("SELF_MASK", "self mask", self.b[silo], silo))]
            for other_at, other in enumerate(self.u2):
                if other == silo:
                    continue
                secret = agree(self.s[silo], public_of(self.s[other]))
                pair = (silo, other) if at < other_at else (other, silo)
                masks.append((1 if at < other_at else -1, self.stream("PAIR_MASK", "pair mask", secret, *pair)))
            for sign, (words32, words64, residues) in masks:
                y32, y64 = (y32 + words32, y64 + words64) if sign > 0 else (y32 - words32, y64 - words64)
                tags = [(tag + sign * residue) % PRIME for tag, residue in zip(tags, residues, strict=True)]
            vector = y32.astype("<u4").tobytes() + y64.astype("<u8").tobytes()
            vector += b"".join(tag.to_bytes(8, "little") for tag in tags)
            self.masked[silo] = blake(vector)
            self.send("MASKED", silo, self.sid + name(silo) + self.transcript + blake(vector), vector)
        parts = [part for silo in self.u3 for part in (silo.encode(), self.masked[silo])]
        sets = [framed(*(silo.encode() for silo in members)) for members in (self.u1, self.u2)]
        self.agreement = digest("agreement", self.sid, *sets, self.transcript, framed(*parts))

    def send_consistency(self) -> None:
        self.signed = {
            silo: self.send("CONSISTENCY", silo, self.sid + name(silo) + self.agreement)
            for silo in self.u3
            if silo in self.who["CONSISTENCY"]
        }

    def send_unmask(self) -> None:
        for silo in self.signed:
            if silo in self.who["UNMASK"]:
                kinds = ["b" if owner in self.u3 else "s" for owner in self.u2]
                openings = [b"".join(self.dealt[kind, owner, silo]) for kind, owner in zip(kinds, self.u2, strict=True)]
                body = self.sid + name(silo) + self.agreement + uint(len(openings), 2) + b"".join(openings)
                self.send("UNMASK", silo, body)

    def publish(self) -> None:
        small, large = (sum(words) for words in zip(*(self.words(silo) for silo in self.u3), strict=True))
        total = small.astype("<u4").tobytes() + large.astype("<i8").tobytes()
        total += b"".join(value.to_bytes(8, "little") for value in self.tag_sums)
        body = self.sid + self.agreement + blake(total) + names(self.u3) + names(list(self.signed))
        self.send("PUBLISH", "", body + b"".join(self.signed.values()), total)
