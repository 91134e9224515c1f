"""What operators and queriers see of a job's end: a release's files and router, and the noise that its sums hold."""

from __future__ import annotations

import math

import numpy as np
import safetensors.numpy

from aggregator.blobs import MODELS, TRUNKS
from aggregator.card import CardFiles, make_card, read_card, write_card
from aggregator.coordinator import Coordinator
from aggregator.noise import StoredNoise
from aggregator.release import Candidate, bundle_of
from aggregator.router import Serving
from aggregator.store import Store
from feddrm.contract.operator_messages import NoiseFound
from feddrm.contract.release import write_bundle


class Publishing:
    """Writes releases of a coordinator's candidates. `serving` is the one in service."""

    def __init__(self, store: Store, coordinator: Coordinator) -> None:
        self._store = store
        self._coordinator = coordinator
        self._noise: StoredNoise | None = None
        self.serving: Serving | None = None

    def serve(self, release: str) -> None:
        """Write a release's files and put it into service; the same again changes nothing."""
        candidate = self._coordinator.releases.candidates[release]
        model = np.frombuffer(self._store.blobs.get(MODELS, candidate.model), dtype="<i8").astype(np.int64)
        bundle = bundle_of(candidate, model)
        folder = self._store.directory / "releases" / release
        card = read_card(folder) or self._card(candidate)
        write_bundle(folder, bundle)
        write_card(folder, card)
        self._store.blobs.put(TRUNKS, bundle.trunk)
        self.serving = Serving.from_bundle(bundle, safetensors.numpy.load(bundle.head), self._coordinator.roster)

    def _card(self, candidate: Candidate) -> CardFiles:
        job = self._coordinator.job
        running = job is not None and job.hash == candidate.plan.hash
        found = self.noise_found(math.inf) if running else None
        roster = job.signed_roster if job is not None and running else self._coordinator.signed_roster
        return make_card(candidate, found, roster, self._coordinator.signer)

    def noise_found(self, limit: float) -> NoiseFound | None:
        """What the sums of the newest job hold of noise, after another look at the store."""
        job = self._coordinator.job
        if job is None:
            return None
        if self._noise is None or self._noise.plan_hash != job.hash:
            self._noise = StoredNoise(job.hash, job.plan)
        return self._noise.look(job.outcomes, self._store.blobs, limit)
