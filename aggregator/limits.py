"""How often queriers and silos may call: token buckets in memory, and a durable budget per querier and day."""

from __future__ import annotations

from dataclasses import dataclass, field

from feddrm.transport.status import BusyError


@dataclass(slots=True)
class Bucket:
    """A token bucket: `rate` tokens a second, at most `burst` at once. Time comes in as seconds of any steady clock."""

    rate: float
    burst: float
    level: float = field(default=-1.0)
    at: float = field(default=0.0)

    def take(self, count: float, now: float) -> bool:
        """Take `count` tokens if there are so many."""
        self.level = self.burst if self.level < 0 else min(self.burst, self.level + (now - self.at) * self.rate)
        self.at = now
        if count > self.level:
            return False
        self.level -= count
        return True


@dataclass(slots=True)
class RateLimit:
    """One bucket for each name. Names come from certificates, so there are never more than members."""

    rate: float
    burst: float
    what: str
    buckets: dict[str, Bucket] = field(default_factory=dict)

    def charge(self, name: str, count: float, now: float) -> None:
        """Count `count` uses by a member.

        Raises:
            BusyError: it calls too often; nothing was counted.
        """
        if not self.buckets.setdefault(name, Bucket(self.rate, self.burst)).take(count, now):
            raise BusyError(f"{name} sends {self.what} faster than {self.rate:g} a second.")
