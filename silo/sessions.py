"""Which sessions a silo entered and what left in them: marks that are never taken back (design 6, "Spent rounds")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from silo.database import Database

_SESSION: Final = "attempt, announcement, session, boot, members, masked, released, certified"


@dataclass(frozen=True, slots=True)
class Entered:
    """A session this silo entered, whatever became of it.

    `announcement` is the R0 body, `session` its SHA-256, `members` are U1 (known once `masked`). `masked`: a masked
    input left. `released`: unmasking shares left. `certified`: a valid abort certificate was seen.
    """

    attempt: int
    announcement: bytes
    session: bytes
    boot: bytes
    members: tuple[str, ...] = ()
    masked: bool = False
    released: bool = False
    certified: bool = False


class Sessions(Database):
    """The sessions' part of the silo's memory."""

    def enter(self, plan: bytes, stage: int, round_number: int, entered: Entered) -> None:
        """Mark a session as entered. Must precede everything that answers it.

        Raises:
            sqlite3.IntegrityError: entered before.
        """
        self._db.execute(
            "INSERT INTO sessions (plan, stage, round, attempt, announcement, session, boot) VALUES (?,?,?,?,?,?,?)",
            (plan, stage, round_number, entered.attempt, entered.announcement, entered.session, entered.boot),
        )

    def highest(self, plan: bytes) -> tuple[int, int, int]:
        """The highest (stage, round, attempt) entered for a plan; zeros before the first."""
        row = self._db.execute(
            "SELECT stage, round, attempt FROM sessions WHERE plan=? ORDER BY stage DESC, round DESC, attempt DESC",
            (plan,),
        ).fetchone()
        return (0, 0, 0) if row is None else (row[0], row[1], row[2])

    def entered(self, plan: bytes, stage: int, round_number: int) -> tuple[Entered, ...]:
        """All sessions entered for one round, by attempt."""
        return self._sessions("plan=? AND stage=? AND round=? ORDER BY attempt", (plan, stage, round_number))

    def session(self, session: bytes) -> Entered | None:
        """An entered session by the hash of its announcement."""
        return next(iter(self._sessions("session=?", (session,))), None)

    def _sessions(self, where: str, arguments: tuple[bytes | int, ...]) -> tuple[Entered, ...]:
        query = f"SELECT {_SESSION} FROM sessions WHERE {where}"  # noqa: S608 (constants only)
        rows = self._db.execute(query, arguments).fetchall()
        return tuple(
            Entered(
                attempt=r[0],
                announcement=bytes(r[1]),
                session=bytes(r[2]),
                boot=bytes(r[3]),
                members=tuple(r[4].split()),
                masked=bool(r[5]),
                released=bool(r[6]),
                certified=bool(r[7]),
            )
            for r in rows
        )

    def refuse(self, session: bytes) -> None:
        """Remember an announcement that this silo said it never takes part in."""
        self._db.execute("INSERT OR IGNORE INTO refused VALUES (?)", (session,))

    def was_refused(self, session: bytes) -> bool:
        """Whether it said so."""
        return self._db.execute("SELECT 1 FROM refused WHERE session=?", (session,)).fetchone() is not None

    def spend(self, plan: bytes, stage: int, round_number: int, attempt: int, members: tuple[str, ...]) -> None:
        """Mark a session of U1 = `members` as masked, before the masked input leaves."""
        with self.transaction():
            self.mark(plan, stage, round_number, attempt, "masked")
            self._db.execute(
                "UPDATE sessions SET members=? WHERE plan=? AND stage=? AND round=? AND attempt=?",
                (" ".join(members), plan, stage, round_number, attempt),
            )

    def mark(
        self,
        plan: bytes,
        stage: int,
        round_number: int,
        attempt: int,
        what: Literal["masked", "released", "certified"],
    ) -> None:
        """Set one mark of a session; a mark is never taken back."""
        done = self._db.execute(
            f"UPDATE sessions SET {what}=1 WHERE plan=? AND stage=? AND round=? AND attempt=?",  # noqa: S608 (Literal)
            (plan, stage, round_number, attempt),
        )
        if done.rowcount != 1:
            raise LookupError("a session is marked that was never entered")
