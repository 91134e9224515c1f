"""What the agent's one worker thread does, whoever does it (silo.workshop.Workshop, or a test's stand-in)."""

from __future__ import annotations

import threading
from typing import Protocol

from silo.effects import DataLoaded, DataRefused, LoadData, Train, Trained, TrainingFailed


class Worker(Protocol):
    """Reads records and trains on them, for `LoadData` and `Train`; `read` and `round` block, and run in one thread."""

    def warm_up(self) -> None:
        """Get ready for what may come."""

    def read(self, effect: LoadData) -> DataLoaded | DataRefused:
        """Read the records with the plan's schema."""

    def round(self, effect: Train, stop: threading.Event) -> Trained | TrainingFailed:
        """Train one round; `stop` ends it early."""
