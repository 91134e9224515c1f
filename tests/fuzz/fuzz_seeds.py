"""Valid bytes to begin fuzzing with, made by the packages themselves, and the fixed facts that they are about."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

TESTS = Path(__file__).resolve().parents[1]
for folder in (".", "unit/secagg", "unit/aggregator", "unit/privacy"):
    sys.path.append(str(TESTS / folder))

from coordinator_harness import Identities, make_plan  # noqa: E402
from privacy_cases import CAPS, EVENT, NOW, ORIGIN, PLAN, WHOLE, note_data  # noqa: E402
from secagg_harness import STEPS, Federation, Session  # noqa: E402
from secagg_proofs import convictions, honest_opening, honest_secret, whole  # noqa: E402

from feddrm.contract import messages as m  # noqa: E402
from feddrm.contract import operator_messages as o  # noqa: E402
from feddrm.contract import query_messages as q  # noqa: E402
from feddrm.contract.identity import MemberKeys, Role  # noqa: E402
from feddrm.contract.kit import FederationRoot, KitBody  # noqa: E402
from feddrm.contract.release import make_statement, sign_statement  # noqa: E402
from feddrm.contract.request import make_request, verify_request  # noqa: E402
from feddrm.contract.rounds import Ack, Lost, sign_ack  # noqa: E402
from feddrm.contract.tickets import Ticket, issue_ticket  # noqa: E402
from privacy.bundle import export_bundle  # noqa: E402
from privacy.canonical import canonical_json  # noqa: E402
from privacy.events import Event  # noqa: E402
from privacy.gate import Gate  # noqa: E402
from privacy.ledger import Ledger  # noqa: E402
from privacy.note import sign_head  # noqa: E402
from privacy.witness import make_fork, make_proof  # noqa: E402
from secagg.exhibits import encode_exhibit, loose  # noqa: E402
from secagg.wire import Step  # noqa: E402

HASH = bytes(range(32))
SILOS = ("a", "b", "c", "d", "e")


@dataclass(frozen=True)
class Case:
    """What the evidence is about. Who is really guilty in it may be convicted by damaged copies too."""

    announce: bytes
    members: dict[str, bytes]
    guilty: str


@dataclass(frozen=True)
class Log:
    """A silo's ledger as a peer knows it."""

    origin: str
    key: bytes
    witnessed: bytes
    plan: bytes
    model: bytes
    event: Event
    notes: tuple[bytes, ...]
    leaves: tuple[bytes, ...]
    proof: bytes
    bundle: bytes


@cache
def session() -> Session:
    return whole(Federation())


@cache
def case() -> Case:
    return Case(session().announce.body, session().federation.members, "silo-1")


def bodies() -> list[tuple[int, bytes]]:
    """Bodies of all steps, by step."""
    frames = [next(iter(session().sent[step].values())) for step in STEPS]
    frames += [
        session().announce,
        session().published.frame,
        Federation().start().run(Step.KEYS).clients["silo-0"].abort("x"),
    ]
    return [(frame.step, frame.body) for frame in frames]


def exhibits() -> list[bytes]:
    """True proofs, false ones, and frames for people."""
    claims = [honest_opening(session(), "silo-1", "silo-2"), honest_secret(session(), "silo-4")]
    frames = [session().announce, session().sent[Step.KEYS]["silo-2"].without_attachment()]
    return [evidence for _, evidence, _ in convictions()] + [encode_exhibit(c) for c in claims] + [loose(frames)]


@cache
def identities() -> Identities:
    return Identities(SILOS)


def documents() -> list[Any]:
    """One of each signed document."""
    plan = make_plan(SILOS)
    roster = identities().roster
    request = verify_request(make_request("hospital-a", Role.SILO, MemberKeys.generate()))
    pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    statement = make_statement(identities().sign(plan), trunk=HASH, head=HASH, layout=HASH, rounds=2)
    return [
        plan,
        roster,
        KitBody(
            format="feddrm kit 1", federation="retina", address="host:1", operator=HASH, root=pem, certificate=pem,
            roster=identities().signed_roster.to_json(),
        ),
        FederationRoot(federation="retina", operator=HASH, root=pem),
        statement,
        Ack(plan=HASH, round=1, session=HASH, sum=HASH, count=3, model=HASH),
        Lost(plan=HASH, round=1, reason="no quorum"),
        Ticket(
            federation="retina", querier="desk", silo="a", release=HASH, roster_version=1, issued_ms=NOW,
            expires_ms=NOW + 1000, nonce=HASH,
        ),
        request,
    ]  # fmt: skip


def _signed() -> list[Any]:
    key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    plan = make_plan(SILOS)
    *_, ack, _, ticket, _ = documents()
    statement = make_statement(identities().sign(plan), trunk=HASH, head=HASH, layout=HASH, rounds=2)
    return [
        identities().signed_roster,
        identities().sign(plan).signed,
        sign_ack(ack, key),
        issue_ticket(ticket, key),
        sign_statement(statement.body(), key),
        make_request("hospital-a", Role.SILO, MemberKeys.generate()),
    ]


def envelopes() -> list[bytes]:
    """Signed documents in their text form."""
    return [signed.to_json().encode() for signed in _signed()]


def messages() -> list[Any]:
    """Messages of the contract, of most kinds."""
    roster, plan, ack, ticket, statement, _ = _signed()
    sent = session().sent
    frames = tuple(frame.without_attachment() for frame in sent[Step.MASKED].values())
    keys = sent[Step.KEYS]["silo-1"]
    outcome = m.RoundOutcome(1, (ack,), HASH)
    silo = o.SiloStatus("a", True, "ready", 1, 2)
    summary = o.RoundSummary(1, 1, "published", ("a",), ("b",), (), HASH, 1)
    figure = o.NamedFigure("both", 0.5, 0.01)
    noise = o.NoiseFound(1344, 0.98, 0.7, 4898, False)
    release = o.ReleaseSummary("0123456789abcdef", HASH, 3, 4, True, plan, statement)
    return [
        roster,
        keys,
        frames[0],
        m.Chunk(HASH, 10, 0, b"12345", HASH),
        m.Fetch(HASH, 5),
        m.UploadReceipt(HASH, 5, False),
        m.HelloRequest("feddrm 0.1"),
        m.Hello("feddrm 0.1", "retina", NOW, roster),
        m.Ready(bytes(16), HASH, 3, HASH, (("a", 4),), HASH),
        m.PlanAnswer(HASH, True, None),
        m.PlanAnswer(HASH, False, m.DeclineReason.POLICY),
        m.SiloFrame(keys),
        m.AckEvent(ack),
        outcome,
        m.Announce(session().announce, (keys,), outcome, (3, 7)),
        m.JobOffer(plan),
        m.StepFrames(HASH, int(Step.MASKED), frames),
        m.Publish(session().published.frame.without_attachment(), HASH),
        m.AbortRequest(HASH, "again"),
        m.OutcomeEvent(outcome),
        m.ReleaseProposal(b"{}"),
        m.JobEnded(HASH, "done", True),
        m.Notice("hello"),
        m.RosterOffer(roster),
        q.Capacity(10, HASH),
        q.Answer(HASH, b"sealed", ""),
        q.SealedQuery("desk", HASH, b"sealed", ticket),
        q.QuerierRelease(plan, statement, HASH),
        q.RouteRequest(HASH, (b"\1\2", b"\3\4")),
        q.RouteReply((q.RouteRow((q.Route("a", 1, ticket), q.Route("b", 1, ticket))),)),
        q.Ask("a", ticket, b"sealed"),
        q.AskReply(b"sealed"),
        o.RosterReceipt(3),
        o.StopJob(HASH, "enough"),
        o.JobReceipt(HASH, "running"),
        o.StatusRequest(b""),
        roster.signatures[0],
        q.GetRelease(),
        q.Route("a", 1, ticket),
        q.RouteRow((q.Route("a", 1, ticket),)),
        silo,
        summary,
        figure,
        noise,
        o.Status(
            federation="retina",
            roster_version=1,
            plan=HASH,
            job="first",
            state="running",
            round=1,
            rounds=2,
            attempt=3,
            step="",
            waiting_for=("a",),
            silos=(silo,),
            history=(summary,),
            detail="",
            release="0123456789abcdef",
            stage=1,
            figures=(figure,),
            noise=noise,
        ),
        release,
        o.ReleaseList((release,)),
        o.PublishRelease("0123456789abcdef"),
    ]


@cache
def log() -> Log:
    """A ledger with one job of two rounds."""
    signer = Ed25519PrivateKey.from_private_bytes(b"l" * 32)
    key = signer.public_key().public_bytes_raw()
    model = bytes(32)
    with tempfile.TemporaryDirectory() as directory:
        ledger = Ledger.open(Path(directory) / "ledger.db", ORIGIN, signer, now_ms=NOW)
        gate = Gate(ledger, CAPS)
        gate.open_job(PLAN, "first", 1e-5, WHOLE, now_ms=NOW, code="test")
        note_data(gate)
        witnessed = ledger.head()
        reservation = gate.reserve(PLAN, 1, 1, EVENT, model=model, now_ms=NOW)
        commit = gate.commit(reservation, HASH, now_ms=NOW)
        proof = make_proof(ledger, (reservation.leaf, commit), (1, 3))
        gate.release(PLAN, 1, 1, sum=HASH, model=model, now_ms=NOW)
        fork = make_fork(sign_head(ORIGIN, 3, HASH, signer), sign_head(ORIGIN, 3, bytes(32), signer))
        bundle = export_bundle(ledger, witnessed={"feddrm/retina/hospital-b": witnessed}, roster="{}", plans=["{}"])
        found = Log(
            ORIGIN, key, witnessed, PLAN, model, EVENT, (witnessed, ledger.head(), fork), tuple(ledger.bodies()), proof,
            bundle.encode(),
        )  # fmt: skip
        ledger.close()
    return found


def notes() -> list[bytes]:
    """Heads, a fork, leaves."""
    return [*log().notes, *log().leaves, canonical_json({"a": [1, 2.5, "é", None, True]})]


def ledgers() -> list[bytes]:
    """An exported ledger, and a proof of a round."""
    return [log().bundle, log().proof]
