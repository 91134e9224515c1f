"""The durable replay cache of sealed queries and the queriers' budgets that follow from it (design 8)."""

from __future__ import annotations

from silo.database import Database


class Answers:
    """What was answered to every sealed request."""

    def __init__(self, database: Database) -> None:
        self._db = database.rows

    def answer(self, query: bytes) -> bytes | None:
        """What was answered to a sealed request (by its hash)."""
        row = self._db.execute("SELECT answer FROM answers WHERE query=?", (query,)).fetchone()
        return None if row is None else bytes(row[0])

    def add(self, query: bytes, querier: str, day: int, records: int, answer: bytes) -> None:
        """Keep an answer about `records` patients; it counts against the querier's budget of that day."""
        self._db.execute("INSERT INTO answers VALUES (?,?,?,?,?)", (query, querier, day, records, answer))

    def answered(self, querier: str, day: int) -> int:
        """About how many records a querier was answered on a day (days since the epoch, UTC)."""
        row = self._db.execute(
            "SELECT COALESCE(SUM(records), 0) FROM answers WHERE querier=? AND day=?", (querier, day)
        ).fetchone()
        return int(row[0])
