"""What the agent's one worker thread does, whoever does it (silo.workshop.Workshop, or a test's stand-in)."""

from __future__ import annotations

import threading
from typing import Protocol

from silo.effects import (
    Contribute,
    Contributed,
    DataLoaded,
    DataRefused,
    LoadData,
    Train,
    Trained,
    TrainingFailed,
    Tune,
    Tuned,
    TuningFailed,
)


class Worker(Protocol):
    """Reads records and works on them, one method for each effect; all but `warm_up` block, and run in one thread."""

    def warm_up(self) -> None:
        """Get ready for what may come."""

    def read(self, effect: LoadData) -> DataLoaded | DataRefused:
        """Read the records with the plan's schema."""

    def round(self, effect: Train, stop: threading.Event) -> Trained | TrainingFailed:
        """Train one round; `stop` ends it early."""

    def contribute(self, effect: Contribute) -> Contributed | TrainingFailed:
        """Compute a round's integers, noise included."""

    def tune(self, effect: Tune, stop: threading.Event) -> Tuned | TuningFailed:
        """Tune the personal head; `stop` ends it early."""
