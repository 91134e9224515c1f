"""What every part of the participant shares: who this silo is, what it pinned, and its durable memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract.announce import NO_PREVIOUS, Place, smallest_cohort
from feddrm.contract.documents import parse_body
from feddrm.contract.names import SiloId
from feddrm.contract.plan import Plan, plan_hash
from feddrm.contract.policy import Policy
from feddrm.contract.roster import Member, Roster, roster_hash
from feddrm.contract.schedule import describe, finished, last_round, rounds_shown, stage_of
from feddrm.contract.signed import Signed
from feddrm.method.layout import Layout, layout_of
from feddrm.method.progress import evaluated, segments
from feddrm.method.update import model_hash
from privacy.gate import Gate
from privacy.ledger import Ledger
from secagg.session import vector_size
from silo.home import DataSettings
from silo.state import Int64s, Job, State

_COMMITMENT_KEY: Final = "commitment key"
_HELD_OUT_KEY: Final = "held-out key"


@dataclass(frozen=True, slots=True)
class Context:
    """One agent process.

    Attributes:
        roster: the pinned one; `signed_roster` is how the operator signed it.
        boot: 16 random bytes of this process.
        read_policy: local/policy.toml as it is now; raises a FeddrmError when it cannot be relied on.
        read_data: local/data.toml, likewise.
        entropy: a CSPRNG, such as os.urandom.
        slot_ms: what depends on records leaves at the end of a slot (silo.slots); 0 for at once.
    """

    federation: str
    me: SiloId
    signer: Ed25519PrivateKey = field(repr=False)
    roster: Roster
    signed_roster: Signed
    read_policy: Callable[[], Policy]
    read_data: Callable[[], DataSettings]
    state: State
    ledger: Ledger
    gate: Gate
    boot: bytes
    entropy: Callable[[int], bytes]
    slot_ms: int

    @property
    def roster_hash(self) -> bytes:
        """Names the pinned roster (32 bytes)."""
        return roster_hash(self.signed_roster.body)

    def silo(self, name: str) -> Member | None:
        """A silo of the pinned roster."""
        return next((m for m in self.roster.members if m.name == name and m.role == "silo"), None)

    def identities(self, names: tuple[str, ...]) -> dict[str, bytes]:
        """Ed25519 identity keys of the roster's silos among `names`."""
        return {name: member.identity for name in names if (member := self.silo(name)) is not None}


def kept_commitment_key(state: State) -> bytes | None:
    """The silo's commitment key, or None: none was made yet."""
    return state.fact(_COMMITMENT_KEY)


def commitment_key(state: State, entropy: Callable[[int], bytes]) -> bytes:
    """The silo's commitment key, 32 bytes; made once, it never leaves."""
    return _own_key(_COMMITMENT_KEY, state, entropy)


def held_out_key(state: State, entropy: Callable[[int], bytes]) -> bytes:
    """What draws the patients that evaluation keeps from training, 32 bytes; made once, it never leaves."""
    return _own_key(_HELD_OUT_KEY, state, entropy)


def _own_key(name: str, state: State, entropy: Callable[[int], bytes]) -> bytes:
    key = state.fact(name)
    if key is None:
        key = entropy(32)
        state.set_fact(name, key)
    return key


@dataclass(frozen=True, slots=True)
class Work:
    """The job in hand, with what follows from its plan."""

    plan_hash: bytes
    plan: Plan
    layout: Layout

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Of a plan body whose signature was verified.

        Raises:
            MalformedError: it is no plan.
        """
        plan = parse_body(body, Plan, what="The plan")
        return cls(plan_hash(body), plan, layout_of(plan))

    @property
    def quorum(self) -> int:
        """The fewest silos that may be in a sum."""
        return smallest_cohort(self.plan)

    @property
    def rounds(self) -> int:
        """How many rounds the job has in all its stages, at most."""
        return last_round(self.plan)

    def stage(self, number: int) -> int:
        """The stage of a round; 0 for a number that is none of this job's."""
        return stage_of(self.plan, number) if 1 <= number <= self.rounds else 0

    def name(self, number: int) -> str:
        """A round in words."""
        return describe(self.plan, number)

    def title(self, number: int) -> str:
        """The same at the beginning of a sentence."""
        name = self.name(number)
        return name[0].upper() + name[1:]

    def segments(self, number: int) -> tuple[int, int]:
        """(32-bit entries, 64-bit entries) of a vector of this round."""
        return segments(self.plan, self.layout, self.stage(number))

    def sum_size(self, number: int) -> int:
        """Bytes of a round's published sum."""
        return vector_size(*self.segments(number))


def current_model(state: State, job: Job) -> Int64s:
    """The job's state after its last round (feddrm.method.progress).

    Raises:
        LookupError: the memory is incomplete (a bug).
    """
    model = state.model(job.plan, job.round)
    if model is None:
        raise LookupError("the state holds no model of its own round")
    return model


def needs_no_round(state: State, work: Work, job: Job) -> bool:
    """Whether the job had all its rounds: an evaluation that was published needs no spare one."""
    return finished(work.plan, job.round, evaluated=evaluated(work.plan, work.layout, current_model(state, job)))


def rounds_of_job(state: State, work: Work, job: Job) -> int:
    """How many rounds the job has if no evaluation is lost from now on."""
    return rounds_shown(work.plan, job.round, evaluated=evaluated(work.plan, work.layout, current_model(state, job)))


def place_of(context: Context, work: Work, job: Job, previous: bytes) -> Place:
    """Where the next round of a job starts, as this silo knows it."""
    number = job.round + 1
    words32, words64 = work.segments(number)
    return Place(
        plan=work.plan_hash,
        roster=context.roster_hash,
        layout=work.layout.fingerprint(),
        words32=words32,
        words64=words64,
        round=number,
        model=model_hash(current_model(context.state, job)),
        previous=previous if job.round else NO_PREVIOUS,
        stage=work.stage(number),
    )
