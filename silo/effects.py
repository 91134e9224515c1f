"""What the participant asks of its shell, and what the shell reports back.

The participant has made durable what an effect rests on before it returns the effect; the shell acts in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from feddrm.contract.messages import CoordinatorEvent, SiloEvent
from feddrm.contract.plan import Plan
from feddrm.method.shared_head import SharedHead

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Send:
    """Send on the control stream; dropped while there is none (the coordinator asks again)."""

    event: SiloEvent


@dataclass(frozen=True, slots=True)
class LoadData:
    """Read the hospital's records with the plan's schema; answered by DataLoaded or DataRefused."""

    plan_hash: bytes
    plan: Plan


@dataclass(frozen=True, slots=True)
class Train:
    """Train one round in a worker thread; answered by Trained or TrainingFailed.

    Attributes:
        model: int64[shared_size], fixed point, after the round before.
        personal: int64[personal_size], fixed point.
        kept: what consolidation keeps in the job's state; empty if the plan has none.
    """

    plan_hash: bytes
    plan: Plan
    round: int
    public_size: int
    model: Int64s = field(repr=False)
    personal: Int64s = field(repr=False)
    kept: Int64s = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)


@dataclass(frozen=True, slots=True)
class Contribute:
    """Compute this silo's integers, noise included, for a round of stage 2 or 4; answered by Contributed or
    TrainingFailed.

    Attributes:
        state: the job's state before the round (feddrm.method.progress).
        personal: int64[personal_size], fixed point.
    """

    plan_hash: bytes
    plan: Plan
    stage: int
    round: int
    state: Int64s = field(repr=False)
    personal: Int64s = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tune:
    """Tune the personal head on the frozen trunk (stage 3); answered by Tuned or TuningFailed.

    Attributes:
        model: int64[shared_size], fixed point.
        personal: int64[personal_size], fixed point.
        shared: the target head of all silos, if this one answers with it.
    """

    plan_hash: bytes
    plan: Plan
    public_size: int
    model: Int64s = field(repr=False)
    personal: Int64s = field(repr=False)
    shared: SharedHead | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StopTraining:
    """Stop the training thread at its next step; its result is not wanted any more."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Upload a blob, resuming where the coordinator's copy ends; answered by Uploaded."""

    blob: bytes
    round: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FetchSum:
    """Fetch a published sum of `size` bytes; answered by Fetched."""

    blob: bytes
    size: int


@dataclass(frozen=True, slots=True)
class ReleaseSigned:
    """This silo can answer queries for a release now."""

    release: bytes


@dataclass(frozen=True, slots=True)
class ForgetDeleted:
    """Cut what was deleted from the state's files, in a moment: nothing waits for it."""


@dataclass(frozen=True, slots=True)
class Log:
    """A sentence for the silo's own log; it never leaves the hospital."""

    text: str
    warning: bool = False


Effect = (
    Send | LoadData | Train | Contribute | Tune | StopTraining | Upload | FetchSum | ReleaseSigned | ForgetDeleted | Log
)


@dataclass(frozen=True, slots=True)
class Connected:
    """The control stream is open (again)."""


@dataclass(frozen=True, slots=True)
class DataLoaded:
    """The records were read. `commitment`: keyed hash of the data with `nonce`, both 32 bytes. The other two are as
    local/data.toml had them at that moment."""

    plan_hash: bytes
    commitment: bytes
    nonce: bytes = field(repr=False)
    patient: str
    public_size: int


@dataclass(frozen=True, slots=True)
class DataRefused:
    """There is no table with the plan's columns; `detail` stays in the hospital."""

    plan_hash: bytes
    detail: str


@dataclass(frozen=True, slots=True)
class Trained:
    """A round's update, float64[shared_size], before quantisation, and the personal head after it."""

    plan_hash: bytes
    round: int
    update: npt.NDArray[np.float64] = field(repr=False)
    personal: Int64s = field(repr=False)


@dataclass(frozen=True, slots=True)
class Contributed:
    """This silo's 64-bit entries for a round of stage 2 or 4, int64[m], noise included."""

    plan_hash: bytes
    stage: int
    round: int
    words: Int64s = field(repr=False)


@dataclass(frozen=True, slots=True)
class TrainingFailed:
    """A round's work ended without a result."""

    plan_hash: bytes
    round: int
    detail: str


@dataclass(frozen=True, slots=True)
class Tuned:
    """The personal head after stage 3."""

    plan_hash: bytes
    personal: Int64s = field(repr=False)


@dataclass(frozen=True, slots=True)
class TuningFailed:
    """Tuning ended without a result."""

    plan_hash: bytes
    detail: str


@dataclass(frozen=True, slots=True)
class Uploaded:
    """The coordinator holds the whole blob, durably."""

    blob: bytes


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes of a sum; their hash is checked by the participant."""

    blob: bytes
    data: bytes = field(repr=False)


LocalEvent = (
    Connected
    | DataLoaded
    | DataRefused
    | Trained
    | Contributed
    | TrainingFailed
    | Tuned
    | TuningFailed
    | Uploaded
    | Fetched
)
Event = CoordinatorEvent | LocalEvent
