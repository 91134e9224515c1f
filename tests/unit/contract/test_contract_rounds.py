"""Outcomes, releases and tickets against a coordinator that forges, replays, trims and mixes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract import labels
from feddrm.contract.authority import CLOCK_SKEW_MS
from feddrm.contract.documents import canonical
from feddrm.contract.errors import FeddrmError, InputError, MalformedError, NotAuthorisedError, VerificationError
from feddrm.contract.identity import MemberKeys, sign_sealing_key
from feddrm.contract.messages import RoundOutcome
from feddrm.contract.plan import Plan
from feddrm.contract.release import (
    Bundle,
    make_statement,
    read_bundle,
    release_id,
    sign_statement,
    verify_release,
    write_bundle,
)
from feddrm.contract.roster import Member, Roster
from feddrm.contract.rounds import Ack, Lost, sign_ack, sign_lost, verify_ack, verify_outcome
from feddrm.contract.signed import Signed, sign
from feddrm.contract.signed_plan import SignedPlan, sign_plan, verify_plan
from feddrm.contract.tickets import TICKET_LIFETIME_MS, Ticket, issue_ticket, verify_ticket

NOW = 1_800_000_000_000
OPERATOR, ROUND, STRANGER = (Ed25519PrivateKey.from_private_bytes(bytes([n] * 32)) for n in (101, 102, 103))


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


@pytest.fixture(scope="module")
def keys() -> dict[str, MemberKeys]:
    return {name: MemberKeys.generate() for name in ("a", "b", "c", "d", "outsider", "desk")}


@pytest.fixture(scope="module")
def roster(keys: dict[str, MemberKeys]) -> Roster:
    return Roster(
        federation="retina",
        version=2,
        issued_ms=NOW,
        expires_ms=NOW + 10**9,
        operator=_public(OPERATOR),
        round_key=_public(ROUND),
        members=tuple(
            Member(
                name=name,
                role="querier" if name == "desk" else "silo",
                identity=key.identity_public,
                sealing=key.sealing.public(),
                sealing_signature=sign_sealing_key(key.identity, name, key.sealing.public()),
                certificate=bytes([index] * 32),
            )
            for index, (name, key) in enumerate(keys.items())
        ),
    )


@pytest.fixture
def signed(plan: Plan) -> SignedPlan:
    return sign_plan(plan, OPERATOR)


def _ack(signed: SignedPlan, **changes: object) -> Ack:
    base = {"plan": signed.hash, "round": 3, "session": b"s" * 32, "sum": b"u" * 32, "count": 4, "model": b"m" * 32}
    return Ack.model_validate(base | changes)


def _outcome(keys: dict[str, MemberKeys], names: str, ack: Ack) -> RoundOutcome:
    return RoundOutcome(ack.round, acks=tuple(sign_ack(ack, keys[n].identity) for n in names), sum=ack.sum)


def test_a_threshold_of_agreeing_acks_certifies_a_round(keys, roster, plan, signed) -> None:
    ack = _ack(signed)
    for names in ("abc", "bcd", "abcd"):
        assert verify_outcome(_outcome(keys, names, ack), plan, roster, plan_hash=signed.hash) == ack
    lost = Lost(plan=signed.hash, round=3, reason="too few silos")
    outcome = RoundOutcome(3, lost=sign_lost(lost, ROUND))
    assert verify_outcome(outcome, plan, roster, plan_hash=signed.hash) == lost


def test_acks_that_do_not_certify(keys, roster, plan, signed) -> None:
    ack = _ack(signed)
    honest = _outcome(keys, "abc", ack)
    other = _ack(signed, model=b"x" * 32)
    a, b, c = honest.acks

    def refused(outcome: RoundOutcome, match: str) -> None:
        with pytest.raises(VerificationError, match=match):
            verify_outcome(outcome, plan, roster, plan_hash=signed.hash)

    refused(_outcome(keys, "ab", ack), "acknowledged by 2 silos; the plan demands 3")
    refused(replace(honest, acks=(a, b, b)), "by 2 silos")
    refused(replace(honest, acks=(a, b, Signed(b.body, b.signatures * 3))), "by 2 silos")
    refused(replace(honest, acks=(a, b, sign_ack(ack, keys["outsider"].identity))), "by 2 silos")
    refused(replace(honest, acks=(a, b, sign_ack(ack, keys["desk"].identity))), "by 2 silos")
    refused(replace(honest, acks=(a, b, sign_ack(ack, ROUND))), "by 2 silos")
    refused(replace(honest, acks=(a, b, Signed(ack_body := canonical(ack), c.signatures[:0]))), "by 2 silos")
    refused(replace(honest, acks=(a, b, sign(keys["c"].identity, labels.RELEASE, ack_body))), "by 2 silos")
    refused(replace(honest, acks=(a, b, sign_ack(other, keys["c"].identity))), "acks of round 3 differ")
    refused(replace(honest, acks=(a, b, c, a, b)), "more acks than the plan has silos")
    refused(replace(honest, sum=b"z" * 32), "another sum")
    refused(replace(honest, sum=b""), "another sum")
    refused(replace(honest, round=4), "another plan or round")
    refused(RoundOutcome(3), "neither acks nor")
    refused(
        replace(honest, lost=sign_lost(Lost(plan=signed.hash, round=3, reason=""), ROUND)), "both published and lost"
    )
    refused(_outcome(keys, "abc", _ack(signed, plan=b"q" * 32)), "another plan")
    refused(_outcome(keys, "abc", _ack(signed, stage=2)), "about another stage")
    refused(_outcome(keys, "abc", _ack(signed, count=5)), "more silos than the plan has")
    refused(_outcome(keys, "abc", _ack(signed, round=11)), "no round 11")


def test_lost_rounds_that_do_not_count(keys, roster, plan, signed) -> None:
    lost = Lost(plan=signed.hash, round=3, reason="")
    for outcome in (
        RoundOutcome(3, lost=sign_lost(lost, STRANGER)),
        RoundOutcome(3, lost=sign_lost(lost, OPERATOR)),
        RoundOutcome(3, lost=sign_lost(lost, keys["a"].identity)),
        RoundOutcome(3, lost=sign(ROUND, labels.TICKET, canonical(lost))),
        RoundOutcome(4, lost=sign_lost(lost, ROUND)),
        RoundOutcome(3, lost=sign_lost(lost, ROUND), sum=b"u" * 32),
        RoundOutcome(3, lost=sign_lost(Lost(plan=b"q" * 32, round=3, reason=""), ROUND)),
    ):
        with pytest.raises(VerificationError):
            verify_outcome(outcome, plan, roster, plan_hash=signed.hash)
    with pytest.raises(MalformedError):
        verify_outcome(
            RoundOutcome(3, lost=sign(ROUND, labels.ROUND_LOST, canonical(_ack(signed)))),
            plan,
            roster,
            plan_hash=signed.hash,
        )


def test_a_silo_that_left_the_roster_certifies_nothing(keys, roster, plan, signed) -> None:
    rest = roster.model_copy(update={"members": roster.members[1:]})
    with pytest.raises(NotAuthorisedError, match="no silo named a"):
        verify_outcome(_outcome(keys, "abcd", _ack(signed)), plan, rest, plan_hash=signed.hash)


def test_one_ack(keys, signed) -> None:
    ack = _ack(signed)
    made = sign_ack(ack, keys["a"].identity)
    assert verify_ack(made, identity=keys["a"].identity_public) == ack
    for identity, document in (
        (keys["b"].identity_public, made),
        (keys["a"].identity_public, Signed(made.body, made.signatures * 2)),
        (keys["a"].identity_public, Signed(made.body + b" ", made.signatures)),
    ):
        with pytest.raises(VerificationError):
            verify_ack(document, identity=identity)


def test_plans_need_this_federations_operator(plan, signed) -> None:
    assert verify_plan(signed.signed, federation="retina", operator=_public(OPERATOR)) == signed
    changed = signed.signed.body.replace(b'"noise_multiplier":1.1', b'"noise_multiplier":0.4')
    assert changed != signed.signed.body
    for document, federation in (
        (Signed(changed, signed.signed.signatures), "retina"),
        (sign_plan(plan, STRANGER).signed, "retina"),
        (sign_plan(plan, ROUND).signed, "retina"),
        (sign(OPERATOR, labels.ROSTER, plan.body()), "retina"),
        (signed.signed, "other"),
    ):
        with pytest.raises(VerificationError):
            verify_plan(document, federation=federation, operator=_public(OPERATOR))


def _statement(signed: SignedPlan, keys: dict[str, MemberKeys], names: str, **changes: object) -> Signed:
    statement = make_statement(signed, trunk=b"t" * 32, head=b"h" * 32, layout=b"l" * 32, rounds=9)
    body = canonical(statement.model_copy(update=changes))
    one = [sign_statement(body, keys[name].identity) for name in names]
    return Signed(body, tuple(signature for document in one for signature in document.signatures))


def test_a_release_is_signed_by_a_threshold_of_the_plans_silos(keys, roster, signed) -> None:
    statement = _statement(signed, keys, "abc")
    release = verify_release(statement, plan=signed.signed, roster=roster)
    assert release.statement.trunk == b"t" * 32
    assert release.statement.silos == ("a", "b", "c", "d")
    assert release.signatures == 3
    assert release.id == release_id(statement) == release.hash.hex()[:16]


def test_forged_releases_are_refused(keys, roster, plan, signed) -> None:
    def refused(statement: Signed, plan_document: Signed = signed.signed) -> None:
        with pytest.raises((VerificationError, MalformedError)):
            verify_release(statement, plan=plan_document, roster=roster)

    honest = _statement(signed, keys, "abc")
    refused(_statement(signed, keys, "ab"))
    refused(Signed(honest.body, honest.signatures[:2] + honest.signatures[:1]))
    outsider = sign_statement(honest.body, keys["outsider"].identity).signatures
    refused(Signed(honest.body, honest.signatures[:2] + outsider))
    refused(Signed(honest.body, honest.signatures[:2] + sign_statement(honest.body, ROUND).signatures))
    refused(Signed(honest.body.replace(b"74" * 32, b"75" * 32), honest.signatures))
    refused(_statement(signed, keys, "abc", plan=b"q" * 32))
    refused(_statement(signed, keys, "abc", silos=("a", "b", "d", "c")))
    refused(_statement(signed, keys, "abc", schema_=b"q" * 32))
    refused(_statement(signed, keys, "abc", roster_version=3))
    refused(_statement(signed, keys, "abc", federation="other"))
    refused(_statement(signed, keys, "abc", rounds=11))
    # A lower threshold would need the operator: the coordinator's own plan does not count.
    weaker = Plan.model_validate(
        plan.model_dump(by_alias=True) | {"name": "weaker"},
    )
    refused(honest, sign_plan(plan, ROUND).signed)
    refused(honest, sign_plan(weaker, OPERATOR).signed)


def test_bundles_are_written_whole(keys, signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "releases" / "one"
    bundle = Bundle(signed.signed, _statement(signed, keys, "abc"), b"trunk", b"head")
    write_bundle(directory, bundle)
    assert read_bundle(directory) == bundle
    write_bundle(directory, replace(bundle, head=b"other"))
    assert read_bundle(directory).head == b"other"
    assert sorted(path.name for path in directory.parent.iterdir()) == ["one"]
    (directory / "statement.signed").write_text("{}")
    with pytest.raises(MalformedError, match=r"statement\.signed"):
        read_bundle(directory)
    (directory / "statement.signed").unlink()
    with pytest.raises(InputError, match="does not exist"):
        read_bundle(directory)


def _ticket(**changes: object) -> Ticket:
    base = {
        "federation": "retina",
        "querier": "desk",
        "silo": "a",
        "release": b"r" * 32,
        "roster_version": 2,
        "issued_ms": NOW,
        "expires_ms": NOW + TICKET_LIFETIME_MS,
        "nonce": b"n" * 32,
    }
    return Ticket.model_validate(base | changes)


def test_tickets(roster) -> None:
    def check(
        signed: Signed, now: int = NOW, querier: str = "desk", silo: str = "a", release: bytes | None = b"r" * 32
    ):
        return verify_ticket(signed, roster=roster, querier=querier, silo=silo, release=release, now_ms=now)

    honest = issue_ticket(_ticket(), ROUND)
    assert check(honest) == _ticket() == check(honest, release=None)
    refusals: list[tuple[Signed, dict[str, object]]] = [
        (honest, {"querier": "other"}),
        (honest, {"silo": "b"}),
        (honest, {"release": b"q" * 32}),
        (honest, {"now": NOW + 2 * TICKET_LIFETIME_MS}),
        (honest, {"now": NOW - CLOCK_SKEW_MS - 1}),
        (issue_ticket(_ticket(), OPERATOR), {}),
        (issue_ticket(_ticket(), STRANGER), {}),
        (sign(ROUND, labels.ROUND_LOST, canonical(_ticket())), {}),
        (issue_ticket(_ticket(federation="other"), ROUND), {}),
        (issue_ticket(_ticket(expires_ms=NOW + 10**12), ROUND), {}),
        (issue_ticket(_ticket(expires_ms=NOW), ROUND), {}),
        (Signed(honest.body.replace(b'"a"', b'"b"'), honest.signatures), {"silo": "b"}),
    ]
    for document, changes in refusals:
        with pytest.raises(FeddrmError):
            check(document, **changes)


def test_a_release_needs_the_rounds_that_the_plan_requires(keys, roster, signed) -> None:
    """Even t silos' signatures do not make a release of a model that was hardly trained."""
    required = signed.plan.training.required_rounds
    assert required == (signed.plan.training.rounds + 1) // 2 > 0
    verify_release(_statement(signed, keys, "abc", rounds=required), plan=signed.signed, roster=roster)
    with pytest.raises(VerificationError, match="requires"):
        verify_release(_statement(signed, keys, "abc", rounds=required - 1), plan=signed.signed, roster=roster)
