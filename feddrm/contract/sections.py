"""Sections of a plan that every job has: what is stated, summed, waited for and shown (design 5, 6, 8)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from feddrm.contract.names import Document, Grown
from privacy.accounting import MINIMUM_DELTA

MAXIMUM_SILOS = 100
UpdateClip = Annotated[float, Field(ge=1e-9, le=1e6)]


class Privacy(Document):
    """The delta at which this job's epsilon is stated; below `MINIMUM_DELTA` the accountant has no digits left."""

    delta: Annotated[float, Field(ge=MINIMUM_DELTA, lt=1e-2)]


class Queries(Grown):
    """What is shown of a record that is to be routed (design 8): to the coordinator `embedding_bits` bits for each
    coordinate of its embedding; to a second silo, besides the nearest, all of it, where that one's density ratio is
    more than `second_opinion` of the nearest one's and both answer the same question. 1 is never.

    And what is answered: `shared_weight` is the part of a shared target head, where there is one, in answers to
    queriers, `home_weight` that in what a hospital is told of its own patients.

    Few bits by default, since a wide embedding in full precision can be solved for the patient. Two bits cost the
    router of the demo 2.5 points, three bits one.
    """

    later: ClassVar[frozenset[str]] = frozenset({"second_opinion", "shared_weight", "home_weight"})

    embedding_bits: Annotated[int, Field(ge=1, le=16)] = 2
    second_opinion: Annotated[float, Field(gt=0, le=1)] = 1.0
    shared_weight: Annotated[float, Field(ge=0, le=1)] = 0.7
    home_weight: Annotated[float, Field(ge=0, le=1)] = 0.3


class SecureAggregation(Document):
    """Threshold, cohort and quantiser of the secure sum (design 6).

    A coordinate of an update is clipped to [-clip, clip], scaled by 2**fraction_bits and rounded.
    """

    threshold: Annotated[int, Field(ge=2, le=MAXIMUM_SILOS)]
    minimum_cohort: Annotated[int, Field(ge=3, le=MAXIMUM_SILOS)]
    colluders: Annotated[int, Field(ge=1, le=MAXIMUM_SILOS)]
    clip: UpdateClip
    fraction_bits: Annotated[int, Field(ge=1, le=29)]


class Deadlines(Document):
    """How long the coordinator waits, in seconds, before it goes on without a silo."""

    gather_seconds: Annotated[float, Field(ge=1e-3, le=7 * 86400)] = 60.0
    train_seconds: Annotated[float, Field(ge=1e-3, le=7 * 86400)] = 3600.0
    step_seconds: Annotated[float, Field(ge=1e-3, le=86400)] = 60.0
