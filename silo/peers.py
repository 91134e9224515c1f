"""The newest head that this silo witnessed of each peer's ledger (design 7)."""

from __future__ import annotations

from silo.database import Database


class Heads:
    """Signed heads by silo. Each extends the one before: privacy.witness checks that before `set_head`."""

    def __init__(self, database: Database) -> None:
        self._db = database.rows

    def head(self, silo: str) -> bytes | None:
        """The newest signed head witnessed of a peer's ledger."""
        row = self._db.execute("SELECT note FROM heads WHERE silo=?", (silo,)).fetchone()
        return None if row is None else bytes(row[0])

    def heads(self) -> dict[str, tuple[int, bytes]]:
        """Size and note of the newest head witnessed of each peer."""
        return {r[0]: (r[1], bytes(r[2])) for r in self._db.execute("SELECT silo, size, note FROM heads ORDER BY silo")}

    def set_head(self, silo: str, size: int, note: bytes) -> None:
        """Keep a peer's head that extends the one before."""
        self._db.execute("INSERT OR REPLACE INTO heads VALUES (?,?,?)", (silo, size, note))
