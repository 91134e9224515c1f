"""What this silo witnessed of its peers' ledgers: newest heads, and for each job a leaf by which it was charged."""

from __future__ import annotations

from silo.database import Database


class Heads:
    """Signed heads by silo. Each extends the one before, or answers for it: privacy.witness checks that before."""

    def __init__(self, database: Database) -> None:
        self._db = database.rows

    def head(self, silo: str) -> tuple[bytes, bytes] | None:
        """The newest signed head witnessed of a peer's ledger, and the key that signed it."""
        row = self._db.execute("SELECT note, key FROM heads WHERE silo=?", (silo,)).fetchone()
        return None if row is None else (bytes(row[0]), bytes(row[1]))

    def heads(self) -> dict[str, tuple[int, bytes]]:
        """Size and note of the newest head witnessed of each peer."""
        return {r[0]: (r[1], bytes(r[2])) for r in self._db.execute("SELECT silo, size, note FROM heads ORDER BY silo")}

    def set_head(self, silo: str, size: int, note: bytes, key: bytes) -> None:
        """Keep a peer's head, signed by `key` (32 bytes)."""
        self._db.execute("INSERT OR REPLACE INTO heads VALUES (?,?,?,?)", (silo, size, note, key))

    def sight(self, silo: str, plan: bytes, sighting: bytes) -> None:
        """Keep proof that a peer charged a job, in place of an older one (privacy.proofs)."""
        self._db.execute("INSERT OR REPLACE INTO sightings VALUES (?,?,?)", (silo, plan, sighting))

    def sighted(self, silo: str) -> tuple[bytes, ...]:
        """Plans whose jobs this peer was seen to charge."""
        rows = self._db.execute("SELECT plan FROM sightings WHERE silo=? ORDER BY plan", (silo,)).fetchall()
        return tuple(bytes(row[0]) for row in rows)

    def sightings(self) -> tuple[bytes, ...]:
        """Proofs that peers charged jobs, one for each peer and job."""
        rows = self._db.execute("SELECT sighting FROM sightings ORDER BY silo, plan").fetchall()
        return tuple(bytes(row[0]) for row in rows)
