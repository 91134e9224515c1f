"""Assembling a release from the model that every silo recomputed (design sections 5 and 8)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from aggregator.job import Job
from feddrm.contract.documents import parse_body
from feddrm.contract.operator_messages import ReleaseSummary
from feddrm.contract.release import Bundle, Statement, release_id, required_signatures
from feddrm.contract.signed import Signature, Signed
from feddrm.contract.signed_plan import SignedPlan
from feddrm.method import progress
from feddrm.method.layout import layout_of
from feddrm.method.update import head_tensors, trunk_tensors


@dataclass(frozen=True, slots=True)
class Candidate:
    """A release that silos have signed or may still sign. `model` is the name of the last state's blob."""

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
    def document(self) -> Statement:
        """The statement, parsed: it is this coordinator's own."""
        return parse_body(self.statement, Statement, what="The release statement")

    @property
    def id(self) -> str:
        """The release's short name."""
        return release_id(self.signed)

    @property
    def threshold(self) -> int:
        """How many signatures it needs."""
        return required_signatures(self.plan.plan)

    def summary(self) -> ReleaseSummary:
        """As the operator lists it."""
        return ReleaseSummary(
            id=self.id,
            plan=self.plan.hash,
            signatures=len(self.signatures),
            threshold=self.threshold,
            published=self.published,
            signed_plan=self.plan.signed,
            statement=self.signed,
        )


def statement_of(job: Job) -> bytes:
    """The release statement's body that every silo of the job derives too."""
    return progress.statement_of(job.signed_plan, job.layout, job.model, job.published()).body()


def bundle_of(candidate: Candidate, state: npt.NDArray[np.int64]) -> Bundle:
    """The files of a release. `state` is the last one of the job (feddrm.method.progress)."""
    layout = layout_of(candidate.plan.plan)
    model = progress.shared_model(candidate.plan.plan, layout, state)
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
