"""A federation in one process: the real coordinator with its real store, and small silos on the real secagg clients.

The silos do no training: silo i contributes 2**i in every entry, so that any double count or omission shows in the sum.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator.blobs import SUMS
from aggregator.engine import Engine
from aggregator.events import Detached, FromSilo, JobStarted, Send
from aggregator.store import Store
from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from feddrm.contract.announce import Place, check_announcement, outcome_hash
from feddrm.contract.chunks import iter_chunks
from feddrm.contract.documents import canonical
from feddrm.contract.identity import MemberKeys, sign_sealing_key
from feddrm.contract.plan import Plan
from feddrm.contract.release import make_statement, sign_statement
from feddrm.contract.roster import Member, Roster, roster_hash, sign_roster
from feddrm.contract.rounds import Ack, Lost, sign_ack, verify_outcome
from feddrm.contract.signed_plan import SignedPlan, sign_plan
from feddrm.method.layout import initial_model, layout_of
from feddrm.method.update import apply, head_hash, model_hash, trunk_hash
from privacy.canonical import canonical_json
from privacy.merkle import EMPTY_ROOT
from privacy.note import sign_head
from privacy.witness import asked_sizes
from secagg.client import (
    AwaitingConsistency,
    AwaitingKeys,
    AwaitingShares,
    AwaitingSum,
    AwaitingUnmask,
    abort_certificate_valid,
    abort_frame,
    join,
)
from secagg.errors import ProtocolViolation
from secagg.hashing import blob_hash
from secagg.session import Announcement
from secagg.vector import decode_sum
from secagg.wire import Frame, Step

DAY_MS = 86_400_000
START_MS = 1_800_000_000_000


def entropy_of(*context: object) -> Callable[[int], bytes]:
    counter = 0

    def draw(size: int) -> bytes:
        nonlocal counter
        counter += 1
        return hashlib.shake_256(repr((context, counter)).encode()).digest(size)

    return draw


def make_plan(silos: Iterable[str], **changes: Any) -> Plan:
    names = tuple(silos)
    document: dict[str, Any] = {
        "federation": "retina",
        "name": "first",
        "roster_version": 1,
        "silos": names,
        "schema": {
            "patient": "id",
            "target": {"kind": "threshold", "column": "y", "operator": ">", "value": 0.0, "labels": ("no", "yes")},
            "columns": ({"kind": "numeric", "name": "age", "lower": 0.0, "upper": 100.0},),
        },
        "model": {"kind": "mlp", "hidden": (3,)},
        "training": {
            "rounds": 2,
            "local_steps": 1,
            "sampling_rate": 0.1,
            "clip_norm": 1.0,
            "noise_multiplier": 1.0,
            "target_weight": 0.5,
            "learning_rate": 0.1,
        },
        "privacy": {"delta": 1e-5},
        "secure_aggregation": {
            "threshold": 4,
            "minimum_cohort": 3,
            "colluders": 1,
            "clip": 1.0,
            "fraction_bits": 20,
        },
        "deadlines": {"gather_seconds": 10.0, "train_seconds": 100.0, "step_seconds": 20.0},
    }
    for key, value in changes.items():
        outer, _, inner = key.partition("__")
        if inner:
            document[outer] = {**document[outer], inner: value}
        else:
            document[outer] = value
    return Plan.model_validate(document)


@dataclass
class Identities:
    """Keys of a whole federation."""

    names: tuple[str, ...]
    version: int = 1
    operator: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    round_key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    keys: dict[str, MemberKeys] = field(init=False)
    roster: Roster = field(init=False)

    def __post_init__(self) -> None:
        self.keys = {name: MemberKeys.generate() for name in self.names}
        self.roster = self.make_roster(self.version)

    def make_roster(self, version: int) -> Roster:
        members = tuple(
            Member(
                name=name,
                role="silo",
                identity=keys.identity_public,
                sealing=keys.sealing.public(),
                sealing_signature=sign_sealing_key(keys.identity, name, keys.sealing.public()),
                certificate=hashlib.sha256(name.encode()).digest(),
            )
            for name, keys in self.keys.items()
        )
        return Roster(
            federation="retina",
            version=version,
            issued_ms=START_MS - DAY_MS,
            expires_ms=START_MS + 300 * DAY_MS,
            operator=self.operator.public_key().public_bytes_raw(),
            round_key=self.round_key.public_key().public_bytes_raw(),
            members=members,
        )

    @property
    def signed_roster(self) -> Any:
        return sign_roster(self.roster, self.operator)

    def sign(self, plan: Plan) -> SignedPlan:
        return sign_plan(plan, self.operator)


@dataclass(frozen=True)
class Upload:
    blob: bytes
    data: bytes


class MiniSilo:
    """What a silo must do, without training, budget and ledger. `disk` survives `restart`, the rest does not."""

    def __init__(self, name: str, index: int, identities: Identities, read_sum: Callable[[bytes], bytes]) -> None:
        self.name, self.index, self.identities, self.read_sum = name, index, identities, read_sum
        self.signer = identities.keys[name].identity
        self.decline: m.DeclineReason | None = None
        self.job: SignedPlan | None = None
        self.round = 0
        self.models: list[Any] = []
        self.outcomes: dict[int, m.RoundOutcome] = {}
        self.acks: dict[int, m.AckEvent] = {}
        self.entered: dict[bytes, dict[str, Any]] = {}
        self.highest = (0, 0)
        self.contributions: dict[int, int] = {}
        self.ended: list[m.JobEnded] = []
        self.boots = 0
        self.u1: tuple[str, ...] = ()
        self.remembers_u1 = True
        self.restart()

    def restart(self) -> None:
        self.boots += 1
        self.boot = hashlib.sha256(f"{self.name} {self.boots}".encode()).digest()[:16]
        self.entropy = entropy_of("silo", self.name, self.boots)
        self.state: Any = None
        self.announced = b""
        self.sid = b""
        self.answers: dict[tuple[int, bytes], list[Any]] = {}
        self.publish: m.Publish | None = None

    @property
    def layout(self) -> Any:
        assert self.job is not None
        return layout_of(self.job.plan)

    def ready(self) -> m.Ready:
        if self.job is None:
            return m.Ready(self.boot, b"", 0, b"", (), roster_hash(self.identities.signed_roster.body))
        return m.Ready(
            self.boot,
            self.job.hash,
            self.round,
            model_hash(self.models[self.round]),
            (),
            roster_hash(self.identities.signed_roster.body),
        )

    def connected(self) -> list[Any]:
        out: list[Any] = [self.ready()]
        if self.job is not None and self.round in self.acks and self.round not in self.outcomes:
            out.append(self.acks[self.round])
        return out

    def handle(self, event: m.CoordinatorEvent) -> list[Any]:
        match event:
            case m.JobOffer(signed):
                return self._offer(signed)
            case m.Announce():
                return self._announce(event)
            case m.StepFrames():
                return self._step(event)
            case m.Publish():
                return self._publish(event)
            case m.AbortRequest(session):
                return self._abort(session)
            case m.OutcomeEvent(outcome):
                return self._outcome(outcome)
            case m.ReleaseProposal(statement):
                return self._release(statement)
            case m.JobEnded():
                self.ended.append(event)
                if self.job is not None and event.plan == self.job.hash:
                    self.state = None
        return []

    def _offer(self, signed: Any) -> list[Any]:
        from feddrm.contract.signed_plan import verify_plan

        operator = self.identities.operator.public_key().public_bytes_raw()
        plan = verify_plan(signed, federation="retina", operator=operator)
        if self.decline is not None:
            return [m.PlanAnswer(plan.hash, False, self.decline)]
        if self.job is None or self.job.hash != plan.hash:
            self.job, self.round = plan, 0
            self.models = [initial_model(layout_of(plan.plan), plan.hash)]
            self.outcomes, self.acks, self.entered, self.highest = {}, {}, {}, (0, 0)
        return [m.PlanAnswer(plan.hash, True), self.ready()]

    def _certify(self, outcome: m.RoundOutcome | None) -> None:
        if outcome is None or outcome.round in self.outcomes:
            return
        assert self.job is not None
        record = verify_outcome(outcome, self.job.plan, self.identities.roster, plan_hash=self.job.hash)
        assert outcome.round in (self.round, self.round + 1)
        before = self.models[outcome.round - 1]
        if isinstance(record, Lost):
            after = before
        else:
            total, _, _ = decode_sum(self.read_sum(record.sum), self.layout.shared_size, 0)
            assert blob_hash(self.read_sum(record.sum)) == record.sum
            after = self._apply(before, total, record.count)
            assert model_hash(after) == record.model
        self.models = [*self.models[: outcome.round], after]
        self.round = outcome.round
        self.outcomes[outcome.round] = outcome

    def _apply(self, before: Any, total: Any, count: int) -> Any:
        assert self.job is not None
        plan = self.job.plan
        return apply(before, total, count, plan.secure_aggregation.fraction_bits, plan.training.server_learning_rate)

    def _announce(self, event: m.Announce) -> list[Any]:
        assert self.job is not None
        start = hashlib.sha256(event.frame.body).digest()
        if start == self.announced and self.state is not None:
            return self.answers[int(Step.ANNOUNCE), start]
        self._certify(event.previous)
        announcement = Announcement.decode(event.frame.body)
        place = Place(
            plan=self.job.hash,
            roster=roster_hash(self.identities.signed_roster.body),
            layout=self.layout.fingerprint(),
            words32=self.layout.shared_size,
            round=self.round + 1,
            model=model_hash(self.models[self.round]),
            previous=outcome_hash(self.outcomes.get(self.round)),
        )
        check_announcement(announcement, self.job.plan, place, self.name)
        position = (announcement.round, announcement.attempt)
        assert position > self.highest, "round and attempt must rise"
        members = {n: k.identity_public for n, k in self.identities.keys.items()}
        for entry in self.entered.values():
            if entry["round"] != announcement.round:
                continue
            if entry["released"]:
                return [self._last_word(start, released=False, reason="released before")]
            if entry["masked"] and not entry["certified"]:
                try:
                    abort_certificate_valid(
                        event.abort_certificate,
                        announce_body=entry["body"],
                        members=members,
                        u1=entry["u1"] if self.remembers_u1 else None,
                    )
                except ProtocolViolation as error:
                    return [self._last_word(start, released=False, reason=error.reason)]
                entry["certified"] = True
        self.highest = position
        self.entered[start] = {
            "round": announcement.round,
            "body": event.frame.body,
            "masked": False,
            "released": False,
            "certified": False,
        }
        self.state, keys = join(
            event.frame,
            server_key=self.identities.round_key.public_key().public_bytes_raw(),
            members=members,
            me=self.name,
            signer=self.signer,
            entropy=self.entropy,
            ledger_proof=self.ledger_proof(event),
        )
        self.announced, self.sid = start, b""
        self.answers = {(int(Step.ANNOUNCE), start): [m.SiloFrame(keys)]}
        return self.answers[int(Step.ANNOUNCE), start]

    def ledger_proof(self, event: m.Announce) -> bytes:
        """Of an empty ledger, which nobody here looks into."""
        head = sign_head(f"feddrm/{self.identities.roster.federation}/{self.name}", 0, EMPTY_ROOT, self.signer).decode()
        asked = list(asked_sizes(event.witnessed))
        return canonical_json({"head": head, "leaves": [], "asked": asked, "consistency": []})

    def _step(self, event: m.StepFrames) -> list[Any]:
        if self.state is None or event.session not in (self.announced, self.sid):
            return []
        key = (event.step, event.session)
        if key in self.answers:
            return self.answers[key]
        entry = self.entered[self.announced]
        out: list[Any]
        try:
            match self.state:
                case AwaitingKeys():
                    keyed = self.state.receive(event.frames)
                    self.sid, self.u1 = keyed.session, keyed.members
                    self.state, frame = keyed.share()
                    out = [m.SiloFrame(frame)]
                case AwaitingShares():
                    ready = self.state.receive(event.frames)
                    entry["masked"], entry["u1"] = True, self.u1
                    self.state, frame = ready.mask(self.vector(), np.zeros(0, dtype=np.int64))
                    self.contributions[entry["round"]] = self.contributions.get(entry["round"], 0) + 1
                    out = [
                        Upload(blob_hash(frame.attachment), frame.attachment),
                        m.SiloFrame(frame.without_attachment()),
                    ]
                case AwaitingConsistency():
                    self.state, frame = self.state.receive(event.frames)
                    out = [m.SiloFrame(frame)]
                case AwaitingUnmask():
                    self.state, frame = self.state.receive(event.frames)
                    entry["released"] = True
                    out = [m.SiloFrame(frame)]
                case _:
                    return []
        except ProtocolViolation as error:
            frame = self.state.abort(error.reason, error.peer, error.evidence)
            self.state = None
            return [m.SiloFrame(frame)]
        self.answers[key] = out
        return out

    def vector(self) -> Any:
        return np.full(self.layout.shared_size, 1 << self.index, dtype=np.int64)

    def _publish(self, event: m.Publish) -> list[Any]:
        if not isinstance(self.state, AwaitingSum):
            return []
        assert self.job is not None
        verified = self.state.receive(replace(event.frame, attachment=self.read_sum(event.sum)))
        number = self.entered[self.announced]["round"]
        model = self._apply(self.models[number - 1], verified.words32, len(verified.survivors))
        self.models = [*self.models[:number], model]
        self.round = number
        self.state = None
        ack = Ack(
            plan=self.job.hash,
            round=number,
            session=verified.session,
            sum=verified.sum,
            count=len(verified.survivors),
            model=model_hash(model),
        )
        self.acks[number] = m.AckEvent(sign_ack(ack, self.signer))
        return [self.acks[number], self.ready()]

    def _abort(self, session: bytes) -> list[Any]:
        if self.state is not None and session == self.announced:
            frame = self.state.abort("asked by the coordinator")
            self.state = None
            return [m.SiloFrame(frame)]
        entry = self.entered.get(session)
        return [] if entry is None else [self._last_word(session, released=entry["released"], reason="gone")]

    def _last_word(self, start: bytes, *, released: bool, reason: str) -> m.SiloFrame:
        return m.SiloFrame(
            abort_frame(announcement=start, me=self.name, signer=self.signer, released=released, reason=reason)
        )

    def _outcome(self, outcome: m.RoundOutcome) -> list[Any]:
        self._certify(outcome)
        self.state = None
        return [self.ready()]

    def _release(self, statement: bytes) -> list[Any]:
        assert self.job is not None
        own = make_statement(
            self.job,
            trunk=trunk_hash(self.layout, self.models[-1]),
            head=head_hash(self.layout, self.models[-1]),
            layout=self.layout.fingerprint(),
            rounds=self.published(),
        ).body()
        assert own == statement
        return [m.ReleaseSignature(sign_statement(statement, self.signer))]

    def published(self) -> int:
        # The last round's certificate may not have come yet; its ack shows that it was published.
        return sum(self.outcomes[r].lost is None if r in self.outcomes else True for r in range(1, self.round + 1))


class World:
    """Coordinator, silos, the network between them, and a clock that jumps to the next deadline when all is quiet."""

    def __init__(self, directory: Path, count: int = 5, identities: Identities | None = None, **plan: Any) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.identities = identities or Identities(tuple(f"site-{i}" for i in range(1, count + 1)))
        self.plan = self.identities.sign(make_plan(self.identities.names, **plan))
        self.now = START_MS
        self.sent: list[tuple[str, Any]] = []
        self.received: list[tuple[str, Any]] = []
        self.to_silo: deque[tuple[str, Any]] = deque()
        self.to_coordinator: deque[tuple[str, Any]] = deque()
        self.down: set[str] = set()
        self.filter: Callable[[str, str, Any], bool] = lambda _way, _silo, _event: True
        self.boots = 0
        self.engine = self.open()
        self.silos = {
            name: MiniSilo(name, index, self.identities, lambda blob: self.engine.store.blobs.get(SUMS, blob))
            for index, name in enumerate(self.identities.names)
        }

    def open(self) -> Engine:
        self.boots += 1
        return Engine.open(
            Store.open(self.directory),
            federation="retina",
            operator=self.identities.operator.public_key().public_bytes_raw(),
            signer=self.identities.round_key,
            roster=self.identities.signed_roster,
            entropy=entropy_of("coordinator", self.boots, os.fspath(self.directory.name)),
            clock=lambda: self.now,
        )

    def restart_coordinator(self) -> None:
        """Kill and start again: everything on its way is lost, every silo connects anew."""
        self.engine.store.close()
        self.engine = self.open()
        self.to_silo.clear()
        self.to_coordinator.clear()
        for name in self.silos:
            if name not in self.down:
                self.connect(name)

    def submit(self, event: Any) -> None:
        for send in self.engine.submit(event):
            self._send(send)

    def _send(self, send: Send) -> None:
        self.sent.append((send.silo, send.event))
        self.to_silo.append((send.silo, send.event))

    def connect(self, *names: str) -> None:
        for name in names or tuple(self.silos):
            self.down.discard(name)
            self.to_coordinator.extend((name, event) for event in self.silos[name].connected())

    def disconnect(self, name: str) -> None:
        """Cut the stream; what is on its way is lost, the process lives."""
        self.down.add(name)
        self.to_silo = deque((n, e) for n, e in self.to_silo if n != name)
        self.to_coordinator = deque((n, e) for n, e in self.to_coordinator if n != name)
        self.submit(Detached(name))

    def kill(self, name: str) -> None:
        self.disconnect(name)
        self.silos[name].restart()

    def crash(self, name: str) -> None:
        """Kill the process; another one is there at once."""
        self.kill(name)
        self.connect(name)

    def start(self) -> None:
        self.submit(JobStarted(self.plan.signed))

    def step(self) -> bool:
        """Deliver one message, or let the next deadline pass; False when nothing can happen any more."""
        if self.to_silo:
            name, event = self.to_silo.popleft()
            if name not in self.down and self.filter("down", name, event) and name not in self.down:
                self.to_coordinator.extend((name, answer) for answer in self.silos[name].handle(event))
            return True
        if self.to_coordinator:
            name, event = self.to_coordinator.popleft()
            if self.filter("up", name, event) and name not in self.down:
                self.received.append((name, event))
                self.take(name, event)
            return True
        due = self.engine.coordinator.due_ms()
        if due is None:
            return False
        self.now = max(self.now, due)
        for send in self.engine.tick():
            self._send(send)
        return True

    def take(self, name: str, event: Any) -> None:
        if isinstance(event, Upload):
            size = self.engine.coordinator.upload_size(name)
            if size is not None:
                for chunk in iter_chunks(event.data):
                    self.engine.store.uploads.add(name, chunk, size)
            return
        heard = FromSilo(name, event)
        # As aggregator.hub does.
        if not self.engine.absorb(heard):
            self.submit(heard)
        elif self.engine.owing:
            for send in self.engine.submit_all(()):
                self._send(send)

    def run(self, until: Callable[[], bool] = lambda: False, limit: int = 5000) -> None:
        for _ in range(limit):
            if until() or not self.step():
                return
        raise AssertionError("the federation does not come to rest")

    @property
    def job(self) -> Any:
        return self.engine.coordinator.job

    @property
    def phase(self) -> str:
        return type(self.job.phase).__name__

    def status(self) -> o.Status:
        return self.engine.status({})

    def sums(self) -> list[int]:
        """The first entry of every published sum: which silos are in it, as bits."""
        found = []
        for outcome in self.job.outcomes:
            if outcome.lost is None:
                total, _, _ = decode_sum(self.engine.store.blobs.get(SUMS, outcome.sum), self.job.layout.shared_size, 0)
                assert len(set(total.tolist())) == 1
                found.append(int(total[0]))
        return found

    def check(self) -> None:
        """All silos hold the coordinator's model; every sum is that of its survivors; nobody masked without right."""
        for summary, outcome in zip(self.job.history, self.job.outcomes, strict=True):
            if outcome.lost is None:
                bits = sum(1 << self.silos[name].index for name in summary.survivors)
                total, _, _ = decode_sum(self.engine.store.blobs.get(SUMS, outcome.sum), self.job.layout.shared_size, 0)
                assert set(total.tolist()) == {bits}, summary
        for name, silo in self.silos.items():
            if name not in self.down and silo.job is not None:
                assert silo.round == len(self.job.outcomes), name
                assert model_hash(silo.models[silo.round]) == self.job.models[-1], name


def unsigned(frame: Frame) -> Frame:
    return replace(frame, signature=bytes(64))


def canonical_ack(ack: Ack) -> bytes:
    return canonical(ack)
