"""Run the real state machines over a scenario, and write down every byte."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
from vectors_inputs import COORDINATOR_NAME, Attempt, Entropy, Scenario, identity

from secagg import keys, labels
from secagg.aborts import abort_certificate_valid
from secagg.bodies import Consistency, Masked
from secagg.client import join
from secagg.errors import ProtocolViolation
from secagg.hashing import blob_hash
from secagg.server import open_session
from secagg.tags import tags
from secagg.vector import decode_sum
from secagg.wire import Frame, Step

FORMAT = "feddrm secagg session vectors 1"
STEPS = (Step.KEYS, Step.SHARES, Step.MASKED, Step.CONSISTENCY, Step.UNMASK)
# A longer attachment is written as its BLAKE3; a longer list of inputs as the label that it comes from.
LONGEST_ATTACHMENT = 8192
LONGEST_LIST = 64
ABORT_REASON = "the coordinator stopped"

Json = dict[str, Any]
Derived = dict[tuple[str, bytes, tuple[bytes, ...]], bytes]


def frame_json(frame: Frame) -> Json:
    """A frame; the step by its name, the coordinator by an empty name."""
    value: Json = {
        "step": Step(frame.step).name,
        "sender": frame.sender,
        "body": frame.body.hex(),
        "signature": frame.signature.hex(),
    }
    if len(frame.attachment) > LONGEST_ATTACHMENT:
        return value | {
            "attachment_blake3": blob_hash(frame.attachment).hex(),
            "attachment_size": len(frame.attachment),
        }
    return value | {"attachment": frame.attachment.hex()}


def sha256(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


@contextmanager
def recorded_derivations() -> Iterator[Derived]:
    """All HKDF calls while it is open, by label, sid and context: whatever module makes them."""
    found: Derived = {}
    real = keys.derive
    names = {value: name for name, value in vars(labels).items() if isinstance(value, bytes)}

    def derive(secret: bytes, label: bytes, session: bytes, *context: bytes) -> bytes:
        key = real(secret, label, session, *context)
        place = (names[label], session, context)
        if found.setdefault(place, key) != key:
            raise AssertionError(f"two silos derive different keys at {place}")
        return key

    users = [
        module
        for name, module in sys.modules.items()
        if name.partition(".")[0] == "secagg" and getattr(module, "derive", None) is real
    ]
    for module in users:
        vars(module)["derive"] = derive
    try:
        yield found
    finally:
        for module in users:
            vars(module)["derive"] = real


class Run:
    """One attempt of a scenario, moved from step to step."""

    def __init__(self, scenario: Scenario, number: int) -> None:
        self.scenario, self.number = scenario, number
        self.attempt: Attempt = scenario.attempts[number - 1]
        self.announcement = scenario.announcement(number)
        self.members = {name: identity(name).public_key().public_bytes_raw() for name in scenario.roster}
        self.server: Any
        self.server, self.announce = open_session(self.announcement, identity(COORDINATOR_NAME), self.members)
        self.messages: list[Frame] = [self.announce]
        self.clients: dict[str, Any] = {}
        self.entropy: dict[str, Entropy] = {}
        self.sets: dict[Step, tuple[str, ...]] = {}
        self.published: Any = None

    def answer(self, step: Step, name: str) -> Frame:
        """What an honest silo sends at a step."""
        request = self.server.outgoing[name]
        if step == Step.KEYS:
            entropy = self.entropy[name] = self.scenario.entropy(self.number, name)
            self.clients[name], frame = join(
                request[0],
                server_key=identity(COORDINATOR_NAME).public_key().public_bytes_raw(),
                members=self.members,
                me=name,
                signer=identity(name),
                entropy=entropy,
                ledger_proof=f"ledger proof of {name}".encode(),
            )
            return frame
        state = self.clients[name]
        if step == Step.SHARES:
            self.clients[name], frame = state.receive(request).share()
        elif step == Step.MASKED:
            self.clients[name], frame = state.receive(request).mask(*self.scenario.words(name))
        else:
            self.clients[name], frame = state.receive(request)
        return frame

    def run(self) -> None:
        """Send everything that the attempt sends."""
        gone: set[str] = set()
        for step in STEPS:
            if step > self.attempt.until:
                break
            gone |= set(self.attempt.lost.get(step, ()))
            sent = [self.answer(step, name) for name in self.server.expected if name not in gone]
            for frame in sent:
                self.server.receive(frame)
            self.messages += sent
            self.sets[step] = tuple(frame.sender for frame in sent)
            result = self.server.close()
            if step == Step.UNMASK:
                self.published = result
            else:
                self.server = result
        if self.attempt.until == Step.PUBLISH:
            self.publish(gone)
        self.messages += [self.clients[name].abort(ABORT_REASON) for name in self.attempt.aborting]

    def publish(self, gone: set[str]) -> None:
        """R6, and every silo that is still there verifies it."""
        self.messages.append(self.published.frame)
        for name in self.sets[Step.UNMASK]:
            verified = self.clients[name].receive(self.published.frame)
            expected = [self.scenario.words(survivor) for survivor in self.published.survivors]
            np.testing.assert_array_equal(verified.words32, sum(small for small, _ in expected))
            np.testing.assert_array_equal(verified.words64, sum(large for _, large in expected))
            assert name not in gone

    def body(self, step: Step, kind: Any) -> Any:
        """The first body of a step, or None."""
        return next((kind.decode(frame.body) for frame in self.messages if frame.step == step), None)


def session_json(run: Run, derived: Derived) -> Json:
    """Everything about one attempt."""
    masked, consistency = run.body(Step.MASKED, Masked), run.body(Step.CONSISTENCY, Consistency)
    mine = {place: key for place, key in derived.items() if place[1] == masked.session}
    values: Json = {
        "announced": sha256(run.announce.body),
        "session": masked.session.hex(),
        "u1": list(run.sets[Step.KEYS]),
        "u2": list(run.sets[Step.SHARES]),
        "u3": list(run.sets[Step.MASKED]),
        "transcript": masked.transcript.hex(),
        "agreement": consistency.agreement.hex() if consistency else None,
        "keys": [
            {"label": name, "context": [context_json(name, part) for part in context], "key": key.hex()}
            for (name, _, context), key in sorted(mine.items())
        ],
        "tags": tags_json(run, mine),
    }
    if run.published is not None:
        values["sum"] = sum_json(run)
    return {
        "announcement": announcement_json(run),
        "entropy": {
            name: {"label": entropy.label, "draws": [draw.hex() for draw in entropy.draws]}
            for name, entropy in run.entropy.items()
        },
        "messages": [frame_json(frame) for frame in run.messages],
        "values": values,
    }


def context_json(label: str, part: bytes) -> str | int:
    """Names and segments as they are, the number of a tag as a number, the transcript in hex."""
    if label == "TAG_WEIGHTS":
        return int.from_bytes(part)
    return part.hex() if label == "TAG_SECRET" else part.decode("ascii")


def announcement_json(run: Run) -> Json:
    """The fields of R0, in wire order."""
    value: Json = {}
    for item in fields(run.announcement):
        entry = getattr(run.announcement, item.name)
        value[item.name] = entry.hex() if isinstance(entry, bytes) else list(entry) if item.name == "cohort" else entry
    return value


def tags_json(run: Run, derived: Derived) -> Json:
    """What each survivor's tags are before they are masked, as unsigned decimals in strings."""
    group = next(key for (name, _, _), key in derived.items() if name == "TAG_SECRET")
    session = run.body(Step.MASKED, Masked).session
    return {
        name: [str(tag) for tag in tags(group, session, *run.scenario.words(name), [name]).tolist()]
        for name in run.sets[Step.MASKED]
    }


def sum_json(run: Run) -> Json:
    """The published sum, decoded."""
    announcement = run.announcement
    small, large, tag_sum = decode_sum(run.published.frame.attachment, announcement.words32, announcement.words64)
    value: Json = {
        "blake3": run.published.sum.hex(),
        "survivors": list(run.published.survivors),
        "mask_keys_opened": list(run.published.opened),
        "tags": [str(tag) for tag in tag_sum.tolist()],
    }
    if len(small) + len(large) <= LONGEST_LIST:
        value |= {"words32": small.tolist(), "words64": large.tolist()}
    return value


def inputs_json(scenario: Scenario) -> Json:
    """Each silo's vector; what is long, by the label of its stream."""
    value: Json = {}
    for name in scenario.roster:
        small, large = scenario.words(name)
        if len(small) + len(large) <= LONGEST_LIST:
            value[name] = {"words32": small.tolist(), "words64": large.tolist()}
        else:
            value[name] = {part: f"{scenario.name}/{part}/{name}" for part in ("words32", "words64")}
    return value


def certificate_json(run: Run) -> Json:
    """Whether an attempt's aborts allow the same vectors to be masked again."""
    aborts = [frame for frame in run.messages if frame.step == Step.ABORT]
    try:
        signers = abort_certificate_valid(aborts, announce_body=run.announce.body, members=run.members)
    except ProtocolViolation:
        signers = frozenset()
    return {"valid": bool(signers), "signers": sorted(signers)}


def scenario_json(scenario: Scenario) -> Json:
    """One file."""
    sessions: list[Json] = []
    for number in range(1, len(scenario.attempts) + 1):
        with recorded_derivations() as derived:
            run = Run(scenario, number)
            run.run()
        sessions.append(session_json(run, derived))
        if run.attempt.aborting:
            sessions[-1]["certificate"] = certificate_json(run)
    names: Mapping[str, str] = {name: name for name in (COORDINATOR_NAME, *scenario.roster)}
    return {
        "format": FORMAT,
        "name": scenario.name,
        "about": scenario.about,
        "identities": {
            name: {
                "private": identity(name).private_bytes_raw().hex(),
                "public": identity(name).public_key().public_bytes_raw().hex(),
            }
            for name in names
        },
        "ledger_proofs": {name: f"ledger proof of {name}".encode().hex() for name in scenario.roster},
        "inputs": inputs_json(scenario),
        "sessions": sessions,
    }
