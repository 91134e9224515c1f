"""A small silo on the real secagg client.

It does no training: silo i contributes 2**i in every entry, so that any double count or omission shows in the sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from coordinator_identities import Identities, entropy_of
from coordinator_mini_job import MiniJob

from feddrm.contract import messages as m
from feddrm.contract.announce import Place, check_announcement, outcome_hash
from feddrm.contract.roster import roster_hash
from feddrm.contract.rounds import Ack, sign_ack
from feddrm.method.layout import initial_model, layout_of
from feddrm.method.update import model_hash
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
from secagg.wire import Step


@dataclass(frozen=True)
class Upload:
    blob: bytes
    data: bytes


class MiniSilo(MiniJob):
    """What a silo must do, without training, budget and ledger. `disk` survives `restart`, the rest does not."""

    def __init__(self, name: str, index: int, identities: Identities, read_sum: Callable[[bytes], bytes]) -> None:
        super().__init__(name, identities, read_sum)
        self.index = index
        self.decline: m.DeclineReason | None = None
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
