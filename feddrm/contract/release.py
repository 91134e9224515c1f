"""A release: the statement that silos sign, its verification, and the bundle directory (design sections 5 and 8).

Every silo recomputes the shared model, so each can sign what it holds itself. A querier relies on the silos'
signatures, never on the coordinator, which could otherwise serve an identity trunk and read patients as embeddings.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field

from feddrm.contract import labels
from feddrm.contract.documents import Hash, canonical, parse_body
from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.files import atomic_write, file_error, make_directory, read_bounded, sync_directory
from feddrm.contract.names import Document, Name
from feddrm.contract.plan import MAXIMUM_ROUNDS, Plan
from feddrm.contract.roster import Roster, Version
from feddrm.contract.schedule import STAGE_EVALUATE, STAGE_ROUTING, STAGE_TRAIN
from feddrm.contract.sections import MAXIMUM_SILOS
from feddrm.contract.signed import Signed, sign, signers
from feddrm.contract.signed_plan import SignedPlan, verify_plan
from feddrm.contract.stages import EVALUATION_WORDS, MAXIMUM_SUMS

PLAN_FILE: Final = "plan.signed"
STATEMENT_FILE: Final = "statement.signed"
TRUNK_FILE: Final = "trunk.safetensors"
HEAD_FILE: Final = "head.safetensors"
# For people, beside the four: it follows from plan and statement, and nothing reads it.
CARD_FILE: Final = "card.md"
MAXIMUM_MODEL: Final = 1 << 30


class Counts(Document):
    """The evaluation's sum as it was published: integers with the noise of `silos` silos in each
    (feddrm.method.evaluation says what they count)."""

    silos: Annotated[int, Field(ge=2, le=MAXIMUM_SILOS)]
    total: Annotated[tuple[int, ...], Field(min_length=EVALUATION_WORDS, max_length=EVALUATION_WORDS)]


class Statement(Document):
    """What is released.

    Attributes:
        plan: plan hash.
        trunk, head: hashes of the published trunk and routing head (feddrm.method.update).
        layout: the layout's fingerprint.
        schema_: SHA-256 of the canonical schema.
        silos: class order of the routing head.
        rounds: published rounds of training, lost ones not counted.
        sums: published sums of the routing fit, likewise.
        evaluation: the evaluation's sum; None where the plan has none or it was lost.
    """

    format: Literal["feddrm release 2"] = "feddrm release 2"
    federation: Name
    plan: Hash
    roster_version: Version
    trunk: Hash
    head: Hash
    layout: Hash
    schema_: Annotated[Hash, Field(alias="schema")]
    silos: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAXIMUM_SILOS)]
    rounds: Annotated[int, Field(ge=0, le=MAXIMUM_ROUNDS)]
    sums: Annotated[int, Field(ge=0, le=MAXIMUM_SUMS)]
    evaluation: Counts | None

    def body(self) -> bytes:
        """The canonical bytes that silos sign."""
        return canonical(self)


def schema_hash(plan: Plan) -> bytes:
    """SHA-256 of the plan's canonical schema (32 bytes)."""
    return hashlib.sha256(canonical(plan.schema_)).digest()


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a job came: published rounds of training, sums of the routing fit, and the evaluation's sum."""

    rounds: int
    sums: int = 0
    evaluation: Counts | None = None

    def shortfall(self, plan: Plan, *, up_to: int = STAGE_EVALUATE) -> str:
        """What a release of the plan still lacks of the stages up to `up_to`, or nothing."""
        training, fit, evaluation = plan.training, plan.routing_fit, plan.evaluation
        if up_to >= STAGE_TRAIN and self.rounds < training.required_rounds:
            return f"{self.rounds} rounds were published; a release requires {training.required_rounds}"
        if up_to >= STAGE_ROUTING and fit is not None and self.sums < fit.required_sums:
            return f"{self.sums} sums of the routing fit were published; a release requires {fit.required_sums}"
        if up_to >= STAGE_EVALUATE and evaluation is not None and evaluation.required and self.evaluation is None:
            return "the evaluation was lost; a release requires it"
        return ""

    def possible(self, plan: Plan) -> bool:
        """Whether a job of the plan can have come so far."""
        sums = plan.routing_fit.sums if plan.routing_fit is not None else 0
        evaluated = self.evaluation is None or plan.evaluation is not None
        return self.rounds <= plan.training.rounds and self.sums <= sums and evaluated


def make_statement(
    plan: SignedPlan,
    *,
    trunk: bytes,
    head: bytes,
    layout: bytes,
    rounds: int,
    sums: int = 0,
    evaluation: Counts | None = None,
) -> Statement:
    """The statement that everybody who holds the same model derives.

    Args:
        trunk, head, layout: 32-byte hashes.
        rounds, sums, evaluation: how far the job came.

    Raises:
        VerificationError: less than the plan requires for a release, or more than it can have.
    """
    reached = Reached(rounds, sums, evaluation)
    if shortfall := reached.shortfall(plan.plan):
        raise VerificationError(f"There can be no release: {shortfall}.")
    if not reached.possible(plan.plan):
        raise VerificationError("A release says that its job came further than its plan goes.")
    return Statement.model_validate(
        {
            "federation": plan.plan.federation,
            "plan": plan.hash,
            "roster_version": plan.plan.roster_version,
            "trunk": trunk,
            "head": head,
            "layout": layout,
            "schema": schema_hash(plan.plan),
            "silos": plan.plan.silos,
            "rounds": rounds,
            "sums": sums,
            "evaluation": evaluation,
        }
    )


def required_signatures(plan: Plan) -> int:
    """How many of the plan's silos must sign a release: its threshold; of a linear model all of them.

    Without a trunk the coordinator sees the features of who is routed. That takes the consent of every hospital's
    policy (`queries.linear`), and a signature is what shows it to a querier.
    """
    return len(plan.silos) if plan.model.kind == "linear" else plan.secure_aggregation.threshold


def sign_statement(body: bytes, identity: Ed25519PrivateKey) -> Signed:
    """Sign a statement's body as a silo, which has compared it with its own."""
    return sign(identity, labels.RELEASE, body)


def release_hash(statement: Signed) -> bytes:
    """SHA-256 that names a release in messages (32 bytes)."""
    return hashlib.sha256(statement.body).digest()


def release_id(statement: Signed) -> str:
    """The 16 hexadecimal digits by which people name a release."""
    return release_hash(statement).hex()[:16]


@dataclass(frozen=True, slots=True)
class Release:
    """A verified release."""

    plan: SignedPlan
    statement: Statement
    signed: Signed
    signatures: int

    @property
    def hash(self) -> bytes:
        """SHA-256 of the statement's body."""
        return release_hash(self.signed)

    @property
    def id(self) -> str:
        """Its short name."""
        return release_id(self.signed)


def signing_silos(statement: Signed, plan: Plan, roster: Roster) -> frozenset[str]:
    """Names of the plan's silos whose signatures on the statement are valid."""
    valid = signers(statement, labels.RELEASE)
    names = set(plan.silos)
    return frozenset(silo.name for silo in roster.silos if silo.identity in valid and silo.name in names)


def verify_release(statement: Signed, *, plan: Signed, roster: Roster) -> Release:
    """Verify a release as a querier does: the plan by the operator, the statement by as many of the plan's silos as it
    takes (`required_signatures`).

    How many follows from the operator-signed plan, keys are from the verifier's own roster.

    Raises:
        VerificationError: a signature is missing, or plan and statement disagree.
        MalformedError: a body is malformed.
    """
    verified = verify_plan(plan, federation=roster.federation, operator=roster.operator)
    signatures = len(signing_silos(statement, verified.plan, roster))
    required = required_signatures(verified.plan)
    if signatures < required:
        raise VerificationError(
            f"The release is signed by {signatures} silos of the roster; the plan demands {required}.",
            remedy="If the roster changed, accept the newest one first (roster accept).",
        )
    parsed = parse_body(statement.body, Statement, what="The release statement")
    expected = make_statement(
        verified,
        trunk=parsed.trunk,
        head=parsed.head,
        layout=parsed.layout,
        rounds=parsed.rounds,
        sums=parsed.sums,
        evaluation=parsed.evaluation,
    )
    if parsed != expected:
        raise VerificationError("The release statement is about another plan.")
    return Release(verified, parsed, statement, signatures)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The four files of a release directory; nothing is verified yet. Trunk and head are safetensors bytes."""

    plan: Signed
    statement: Signed
    trunk: bytes = field(repr=False)
    head: bytes = field(repr=False)


def write_bundle(directory: Path, bundle: Bundle) -> None:
    """Write a release directory, all or nothing; an existing one is replaced.

    Raises:
        InputError: it cannot be written.
    """
    make_directory(directory.parent)
    building = directory.with_name(f".{directory.name}.new")
    try:
        if building.exists():
            shutil.rmtree(building)
        make_directory(building)
        atomic_write(building / PLAN_FILE, bundle.plan.to_json().encode())
        atomic_write(building / STATEMENT_FILE, bundle.statement.to_json().encode())
        atomic_write(building / TRUNK_FILE, bundle.trunk)
        atomic_write(building / HEAD_FILE, bundle.head)
        if directory.exists():
            shutil.rmtree(directory)
        building.rename(directory)
        sync_directory(directory.parent)
    except OSError as error:
        raise file_error(error, directory) from error


def read_bundle(directory: Path) -> Bundle:
    """Read a release directory; verify it with `verify_release` and the hashes of trunk and head.

    Raises:
        InputError: a file is missing or too large.
        MalformedError: a signed document is damaged.
    """
    return Bundle(
        plan=_signed(directory / PLAN_FILE),
        statement=_signed(directory / STATEMENT_FILE),
        trunk=read_bounded(directory / TRUNK_FILE, limit=MAXIMUM_MODEL),
        head=read_bounded(directory / HEAD_FILE, limit=MAXIMUM_MODEL),
    )


def _signed(path: Path) -> Signed:
    try:
        return Signed.from_json(read_bounded(path))
    except MalformedError as error:
        raise MalformedError(f"{path}: {error.message}") from error
