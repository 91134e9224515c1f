"""What a silo remembers of its jobs: plans, models, sessions, updates, outcomes (design 6, "Spent rounds")."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from feddrm.contract.signed import Signed
from silo.sessions import Sessions

Int64s = npt.NDArray[np.int64]
Integers = npt.NDArray[np.signedinteger[Any]]
Outcome = Literal["released", "lost"]


@dataclass(frozen=True, slots=True)
class Job:
    """A plan that this silo agreed to. `round`: the last one applied or known lost; `ended` is empty while it runs."""

    plan: bytes
    signed: Signed
    round: int
    ended: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """How a round ended here. `record` is the body of the ack or of the lost record; `certified` once t silos or the
    round key vouched for it."""

    outcome: Outcome
    record: bytes
    certified: bool


# Every event asks for the job, and there is one at a time.
_signed: Final = lru_cache(maxsize=4)(Signed.from_json)


class State(Sessions):
    """Jobs, models, sessions (silo.sessions), updates, outcomes and releases."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        # Every event asks for the job and its last outcome several times; both change twice a round.
        self._job_kept: tuple[Job | None] | None = None
        self._outcomes_kept: dict[tuple[bytes, int], Resolved | None] = {}
        self._model_kept: tuple[bytes, int, Int64s] | None = None

    def _changed(self) -> None:
        """Forget what was read of jobs, outcomes and models: every write to jobs or models calls this first."""
        self._job_kept = self._model_kept = None
        self._outcomes_kept.clear()

    @property
    def _keeps(self) -> bool:
        # What is read inside a transaction may be rolled back.
        return self.sole and not self._db.in_transaction

    # jobs, models, personal heads

    def add_job(self, plan: bytes, signed: Signed, model: Int64s, personal: Int64s) -> None:
        """Remember an accepted plan with its initial model and personal head."""
        self._changed()
        with self.transaction():
            self._db.execute("INSERT INTO jobs (plan, signed, round) VALUES (?,?,0)", (plan, signed.to_json()))
            self._db.execute("INSERT INTO models VALUES (?,0,?)", (plan, model.astype("<i8").tobytes()))
            self.set_personal(plan, 0, personal)

    def job(self, plan: bytes) -> Job | None:
        """The job of a plan hash."""
        return self._job("plan=?", (plan,))

    def active_job(self) -> Job | None:
        """The job that has not ended."""
        if self._job_kept is not None:
            return self._job_kept[0]
        job = self._job("ended IS NULL", ())
        if self._keeps:
            self._job_kept = (job,)
        return job

    def last_job(self) -> Job | None:
        """The newest job, ended or not."""
        return self._job("1 ORDER BY serial DESC LIMIT 1", ())

    def plans(self) -> tuple[Signed, ...]:
        """All plans that this silo ever agreed to, as the operator signed them."""
        rows = self._db.execute("SELECT signed FROM jobs ORDER BY serial").fetchall()
        return tuple(Signed.from_json(row[0]) for row in rows)

    def _job(self, where: str, arguments: tuple[bytes, ...]) -> Job | None:
        row = self._db.execute(
            f"SELECT plan, signed, round, ended FROM jobs WHERE {where}",  # noqa: S608 (constants only)
            arguments,
        ).fetchone()
        if row is None:
            return None
        return Job(bytes(row[0]), _signed(row[1]), row[2], row[3] or "")

    def end_job(self, plan: bytes, reason: str) -> None:
        """A job never becomes active again; what waited for a resolution is dropped with it."""
        self._changed()
        with self.transaction():
            self._db.execute("UPDATE jobs SET ended=? WHERE plan=? AND ended IS NULL", (reason or "ended", plan))
            self._db.execute("DELETE FROM updates WHERE plan=?", (plan,))
        self.remains = True

    def model(self, plan: bytes, round_number: int) -> Int64s | None:
        """The job's state after a round (feddrm.method.progress), int64[n], read-only; the last two are kept."""
        kept = self._model_kept
        if kept is not None and kept[:2] == (plan, round_number):
            return kept[2]
        row = self._db.execute("SELECT model FROM models WHERE plan=? AND round=?", (plan, round_number)).fetchone()
        if row is None:
            return None
        model = np.frombuffer(row[0], "<i8").astype(np.int64, copy=False)
        model.flags.writeable = False
        if self._keeps:
            self._model_kept = (plan, round_number, model)
        return model

    def personal(self, plan: bytes) -> tuple[int, Int64s] | None:
        """The personal head, fixed point int64[m], and the round in which it was last trained."""
        row = self._db.execute("SELECT round, head FROM personal WHERE plan=?", (plan,)).fetchone()
        return None if row is None else (row[0], np.frombuffer(row[1], "<i8").astype(np.int64))

    def set_personal(self, plan: bytes, round_number: int, head: Int64s) -> None:
        """Replace the personal head."""
        self._db.execute(
            "INSERT OR REPLACE INTO personal VALUES (?,?,?)", (plan, round_number, head.astype("<i8").tobytes())
        )

    # quantised updates

    def update(self, plan: bytes, stage: int, round_number: int) -> Int64s | None:
        """The quantised update of a round that is not resolved yet, int64[n]."""
        row = self._db.execute(
            "SELECT q FROM updates WHERE plan=? AND stage=? AND round=?", (plan, stage, round_number)
        ).fetchone()
        return None if row is None else np.frombuffer(row[0], "<i8").astype(np.int64)

    def set_update(
        self, plan: bytes, stage: int, round_number: int, q: Integers, personal: Int64s | None = None
    ) -> None:
        """Keep a round's work: what is to be masked, and the personal head that came with it if one did, in one step.

        Raises:
            sqlite3.IntegrityError: the round has one already.
        """
        with self.transaction():
            self._db.execute(
                "INSERT INTO updates VALUES (?,?,?,?)", (plan, stage, round_number, q.astype("<i8").tobytes())
            )
            if personal is not None:
                self.set_personal(plan, round_number, personal)

    # outcomes

    def outcome(self, plan: bytes, round_number: int) -> Resolved | None:
        """How a round ended here."""
        key = (plan, round_number)
        if key in self._outcomes_kept:
            return self._outcomes_kept[key]
        resolved = self._outcome(plan, round_number)
        if self._keeps:
            self._outcomes_kept[key] = resolved
        return resolved

    def _outcome(self, plan: bytes, round_number: int) -> Resolved | None:
        row = self._db.execute(
            "SELECT outcome, record, certified FROM outcomes WHERE plan=? AND round=?", (plan, round_number)
        ).fetchone()
        return None if row is None else Resolved(row[0], bytes(row[1]), bool(row[2]))

    def resolve(self, plan: bytes, round_number: int, resolved: Resolved, model: Int64s) -> None:
        """End a round, perhaps in another way than before, with the state after it.

        Updates are dropped: of this round, as it is never masked again, and of a later one, which was trained from a
        model that no longer is.
        """
        self._changed()
        with self.transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO outcomes VALUES (?,?,?,?,?)",
                (plan, round_number, resolved.outcome, resolved.record, resolved.certified),
            )
            self._db.execute(
                "INSERT OR REPLACE INTO models VALUES (?,?,?)", (plan, round_number, model.astype("<i8").tobytes())
            )
            self._db.execute("DELETE FROM models WHERE plan=? AND round<?", (plan, round_number - 1))
            self._db.execute("UPDATE jobs SET round=? WHERE plan=?", (round_number, plan))
            self._db.execute("DELETE FROM updates WHERE plan=?", (plan,))
        self.remains = True

    def keep_evidence(self, plan: bytes, round_number: int, text: str) -> None:
        """Keep a signed outcome, as JSON, for the day that another one of the same round appears."""
        self._db.execute("INSERT INTO evidence (plan, round, text) VALUES (?,?,?)", (plan, round_number, text))

    def evidence(self, plan: bytes, round_number: int) -> tuple[str, ...]:
        """Outcomes that were kept of a round, oldest first."""
        rows = self._db.execute(
            "SELECT text FROM evidence WHERE plan=? AND round=? ORDER BY serial", (plan, round_number)
        )
        return tuple(row[0] for row in rows)

    def keep_case(self, plan: bytes, round_number: int, text: str) -> None:
        """Keep evidence of what happened in a session (silo.accusations)."""
        self._db.execute("INSERT INTO cases (plan, round, text) VALUES (?,?,?)", (plan, round_number, text))

    def cases(self) -> tuple[tuple[bytes, int, str], ...]:
        """All evidence of sessions, oldest first: plan, round, text."""
        rows = self._db.execute("SELECT plan, round, text FROM cases ORDER BY serial")
        return tuple((bytes(row[0]), row[1], row[2]) for row in rows)

    def certify(self, plan: bytes, round_number: int) -> None:
        """A round's outcome was seen certified; seen again, nothing is written."""
        self._outcomes_kept.clear()
        self._db.execute(
            "UPDATE outcomes SET certified=1 WHERE plan=? AND round=? AND certified=0", (plan, round_number)
        )

    def released(self, plan: bytes) -> int:
        """How many rounds were published, lost ones not counted."""
        row = self._db.execute("SELECT COUNT(*) FROM outcomes WHERE plan=? AND outcome='released'", (plan,)).fetchone()
        return int(row[0])

    # releases that this silo signed and can answer for

    def add_release(self, release: bytes, plan: bytes, model: Int64s, personal: Int64s) -> bool:
        """Remember a release by the hash of its statement, with the models that answer for it, before it is signed.

        Returns:
            False if another release of the plan was signed before: there is one for each plan, for good.
        """
        self._db.execute(
            "INSERT OR IGNORE INTO releases (release, plan, model, personal) VALUES (?,?,?,?)",
            (release, plan, model.astype("<i8").tobytes(), personal.astype("<i8").tobytes()),
        )
        return self.release_plan(release) == plan

    def release_plan(self, release: bytes) -> bytes | None:
        """The plan whose model a release is."""
        row = self._db.execute("SELECT plan FROM releases WHERE release=?", (release,)).fetchone()
        return None if row is None else bytes(row[0])

    def release_models(self, release: bytes) -> tuple[Int64s, Int64s] | None:
        """(feddrm.method.progress.answering_model int64[n], personal head int64[m]) as they were when the release was
        signed."""
        row = self._db.execute("SELECT model, personal FROM releases WHERE release=?", (release,)).fetchone()
        if row is None:
            return None
        model, personal = (np.frombuffer(blob, "<i8").astype(np.int64) for blob in row)
        return model, personal

    def last_release(self) -> bytes | None:
        """The newest release that this silo signed."""
        row = self._db.execute("SELECT release FROM releases ORDER BY serial DESC LIMIT 1").fetchone()
        return None if row is None else bytes(row[0])
