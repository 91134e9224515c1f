"""The noise in the sums that this coordinator keeps (`feddrm.method.noise_meter`), looked at a few sums at a time.

Derived from the store alone: nothing here is remembered over a restart, and nothing rests on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aggregator.blobs import SUMS, Blobs
from feddrm.contract.documents import parse_body
from feddrm.contract.errors import FeddrmError
from feddrm.contract.messages import RoundOutcome
from feddrm.contract.operator_messages import NoiseFound
from feddrm.contract.plan import Plan
from feddrm.contract.rounds import Ack
from feddrm.method.layout import layout_of
from feddrm.method.noise_meter import NoiseMeter
from feddrm.method.progress import segments
from secagg.errors import WireError
from secagg.vector import decode_sum

# Read at one look, so that whoever asks for the status of a long job after a restart keeps nobody waiting.
LOOK_BYTES: Final = 32 << 20


class StoredNoise:
    """The noise of one job's sums."""

    def __init__(self, plan_hash: bytes, plan: Plan) -> None:
        self.plan_hash: Final = plan_hash
        self._plan = plan
        self._layout = layout_of(plan)
        self._meter = NoiseMeter(plan)
        self._seen = 0

    def look(self, outcomes: Sequence[RoundOutcome], blobs: Blobs, limit: float = LOOK_BYTES) -> NoiseFound | None:
        """Look at rounds that were not looked at before, until `limit` bytes were read; what was found so far.

        A sum that is not in the store, or damaged there, is left out.

        Args:
            outcomes: all certified ones of the job, in order.
        """
        read = 0
        while self._seen < len(outcomes) and read < limit:
            outcome = outcomes[self._seen]
            self._seen += 1
            if outcome.lost is not None or not outcome.acks:
                continue
            try:
                ack = parse_body(outcome.acks[0].body, Ack, what="An ack")
                data = blobs.get(SUMS, outcome.sum)
                words32, words64, _ = decode_sum(data, *segments(self._plan, self._layout, ack.stage))
            except (FeddrmError, WireError):
                continue
            read += len(data)
            self._meter.add(ack.stage, ack.round, words32, words64, ack.count)
        return self._meter.finding()
