"""One hospital's agent whose updates are given instead of trained; everything else is the agent itself.

Run by bench.rounds: `python -m bench.rounds_silo DIR`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from os import urandom
from pathlib import Path

import numpy as np

from bench.house import PATIENT, PUBLIC_SIZE
from feddrm.method.layout import layout_of
from feddrm.method.progress import segments
from privacy.commitments import commit_dataset
from silo.agent import Demo
from silo.assembly import serve
from silo.context import Context, commitment_key
from silo.effects import Contribute, Contributed, DataLoaded, LoadData, Train, Trained, Tune, Tuned
from silo.home import AgentSettings, Home


class Given:
    """A worker that has its updates already: training is not what is measured."""

    def __init__(self, _home: Home, context: Context, _settings: AgentSettings) -> None:
        self._key = commitment_key(context.state, urandom)
        self._update: np.ndarray | None = None

    def warm_up(self) -> None:
        """Nothing to import."""

    def read(self, effect: LoadData) -> DataLoaded:
        """The commitment to an empty table."""
        nonce = urandom(32)
        return DataLoaded(effect.plan_hash, commit_dataset(self._key, bytes(32), nonce), nonce, PATIENT, PUBLIC_SIZE)

    def round(self, effect: Train, _stop: threading.Event) -> Trained:
        """The same update every round."""
        if self._update is None:
            self._update = np.random.default_rng().uniform(-1, 1, len(effect.model))
        return Trained(effect.plan_hash, effect.round, self._update, effect.personal)

    def contribute(self, effect: Contribute) -> Contributed:
        """As many ones as the stage has entries."""
        words = segments(effect.plan, layout_of(effect.plan), effect.stage)[1]
        return Contributed(effect.plan_hash, effect.stage, effect.round, np.ones(words, np.int64))

    def tune(self, effect: Tune, _stop: threading.Event) -> Tuned:
        """The same head."""
        return Tuned(effect.plan_hash, effect.personal)


if __name__ == "__main__":
    # `created` is when the record was made, in seconds since the epoch: the line that says a sum is verified is written
    # after the sum was verified, applied and stored.
    logging.basicConfig(level=logging.INFO, format="%(created).6f %(message)s", stream=sys.stdout)
    asyncio.run(serve(Path(sys.argv[1]), Demo(), Given))
