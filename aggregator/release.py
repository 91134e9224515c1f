"""Assembling a release from the model that every silo recomputed (design sections 5 and 8)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from aggregator.job import Job
from feddrm.contract.messages import ReleaseSummary
from feddrm.contract.release import Bundle, make_statement, release_id
from feddrm.contract.signed import Signature, Signed
from feddrm.contract.signed_plan import SignedPlan
from feddrm.method.layout import layout_of
from feddrm.method.update import head_hash, head_tensors, trunk_hash, trunk_tensors


@dataclass(frozen=True, slots=True)
class Candidate:
    """A release that silos have signed or may still sign. `model` is the name of the model's blob."""

    plan: SignedPlan
    statement: bytes
    signatures: tuple[Signature, ...]
    model: bytes
    published: bool = False

    @property
    def signed(self) -> Signed:
        """The statement with all signatures so far."""
        return Signed(self.statement, self.signatures)

    @property
    def id(self) -> str:
        """The release's short name."""
        return release_id(self.signed)

    @property
    def threshold(self) -> int:
        """How many signatures it needs."""
        return self.plan.plan.secure_aggregation.threshold

    def summary(self) -> ReleaseSummary:
        """As the operator lists it."""
        return ReleaseSummary(self.id, self.plan.hash, len(self.signatures), self.threshold, self.published)


def statement_of(job: Job) -> bytes:
    """The release statement's body that every silo of the job derives too."""
    return make_statement(
        job.signed_plan,
        trunk=trunk_hash(job.layout, job.model),
        head=head_hash(job.layout, job.model),
        layout=job.layout.fingerprint(),
        rounds=job.published(),
    ).body()


def bundle_of(candidate: Candidate, model: npt.NDArray[np.int64]) -> Bundle:
    """The files of a release. `model` is int64[shared_size], the last one of the job."""
    layout = layout_of(candidate.plan.plan)
    return Bundle(
        plan=candidate.plan.signed,
        statement=candidate.signed,
        trunk=safetensors.numpy.save(dict(trunk_tensors(layout, model))),
        head=safetensors.numpy.save(dict(head_tensors(layout, model))),
    )


@dataclass(slots=True)
class Releases:
    """All releases of a federation by id, and the one in service (empty while there is none)."""

    candidates: dict[str, Candidate] = field(default_factory=dict)
    current: str = ""
