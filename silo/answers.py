"""The durable memory of sealed queries (design 8): answers, used tickets, and the queriers' budgets.

A refusal of a query whose querier is known is kept like an answer, and costs as much.
"""

from __future__ import annotations

from silo.database import Database


class Answers:
    """What was answered to every sealed request."""

    def __init__(self, database: Database) -> None:
        self._db = database.rows

    def answer(self, query: bytes) -> bytes | None:
        """What was answered to a sealed request (by its hash); empty for a refusal."""
        row = self._db.execute("SELECT answer FROM answers WHERE query=?", (query,)).fetchone()
        return None if row is None else bytes(row[0])

    def add(self, query: bytes, querier: str, day: int, records: int, answer: bytes) -> None:
        """Keep an answer about `records` patients, empty for a refusal; it counts against the querier's budget of
        that day."""
        self._db.execute("INSERT INTO answers VALUES (?,?,?,?,?)", (query, querier, day, records, answer))

    def answered(self, querier: str, day: int) -> int:
        """About how many records a querier was answered on a day (days since the epoch, UTC)."""
        row = self._db.execute(
            "SELECT COALESCE(SUM(records), 0) FROM answers WHERE querier=? AND day=?", (querier, day)
        ).fetchone()
        return int(row[0])

    def use_ticket(self, nonce: bytes, query: bytes) -> bool:
        """Use a ticket for a sealed request, durably; False if it was used for another one."""
        self._db.execute("INSERT OR IGNORE INTO tickets VALUES (?,?)", (nonce, query))
        row = self._db.execute("SELECT query FROM tickets WHERE nonce=?", (nonce,)).fetchone()
        return bytes(row[0]) == query
