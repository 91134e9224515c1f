"""The plan of a job: everything adaptive that privacy depends on, fixed and signed by the operator (design 5)."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable
from typing import Annotated, ClassVar, Self

import rfc8785
from pydantic import Field, model_validator

from feddrm.contract import labels
from feddrm.contract.architecture import Shape, TensorSpec, matching, tensors_of
from feddrm.contract.models import AnyModel
from feddrm.contract.names import Grown, Name
from feddrm.contract.schema import Schema, Target
from feddrm.contract.sections import MAXIMUM_SILOS, Deadlines, Privacy, Queries, SecureAggregation
from feddrm.contract.stages import Evaluation, PersonalHead, RoutingFit, check_ring
from feddrm.contract.training import Training

_RING_LIMIT = 1 << 30
# Room for masked vectors of 128 MiB. Beside the network a step of training needs some 40 bytes a parameter, 70 when its
# batch has more than one block (2.2 GiB at the limit); a record's gradient is written out only for layers that are not
# linear. An auditor derives the first model.
MAXIMUM_PARAMETERS = 1 << 25
# What a sealed query carries of one record (feddrm.contract.seal), and what the routing fit takes.
MAXIMUM_WIDTH = 1 << 16
MAXIMUM_EMBEDDING = 1 << 14

# The range that privacy.events accounts for.
MAXIMUM_STEPS = 1_000_000
MAXIMUM_ROUNDS = 10_000


class Plan(Grown):
    """A whole job. `silos` fixes the order of the routing head's classes and of the roster in the protocol.

    `own_targets` are of silos whose own model answers something else than `schema.target`: other classes, or another
    column. Their target heads have these classes from the first round on; as no sum has target heads in it, nothing
    else differs.
    """

    later: ClassVar[frozenset[str]] = frozenset({"routing_fit", "personal_head", "evaluation", "own_targets"})

    federation: Name
    name: Name
    roster_version: Annotated[int, Field(ge=1)]
    silos: Annotated[tuple[Name, ...], Field(min_length=3, max_length=MAXIMUM_SILOS)]
    schema_: Annotated[Schema, Field(alias="schema")]
    model: AnyModel
    training: Training
    routing_fit: RoutingFit | None = None
    personal_head: PersonalHead | None = None
    evaluation: Evaluation | None = None
    own_targets: dict[Name, Target] | None = None
    privacy: Privacy
    secure_aggregation: SecureAggregation
    queries: Queries = Queries()
    deadlines: Deadlines = Deadlines()

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.training.rounds * self.training.local_steps > MAXIMUM_STEPS:
            raise ValueError(f"training: rounds * local_steps must stay below {MAXIMUM_STEPS}")
        self.model.check(self.schema_.shape)
        if self.width > MAXIMUM_WIDTH:
            raise ValueError(
                f"schema: {self.width} numbers a record, and a query carries {MAXIMUM_WIDTH} at most; take smaller "
                'images, fewer categories, or model.kind "frozen", whose queries carry what was extracted'
            )
        _in_section("model.personal", lambda: self.personal)
        _in_section("training.ewc.tensors", lambda: self.held)
        if self.training.head_steps and not 0 < len(self.personal) < len(self.tensors):
            raise ValueError("training.head_steps: needs personal tensors and shared ones (model.personal)")
        if self.parameters > MAXIMUM_PARAMETERS:
            raise ValueError(f"model: {self.parameters} parameters exceed the limit of {MAXIMUM_PARAMETERS}")
        if self.training.required_rounds > self.training.rounds:
            raise ValueError(f"training.minimum_rounds: exceeds the {self.training.rounds} rounds")
        count = len(self.silos)
        sums = self.secure_aggregation
        if len(set(self.silos)) != count:
            raise ValueError("silos: a name appears twice")
        if sums.minimum_cohort > count:
            raise ValueError(f"secure_aggregation.minimum_cohort: {sums.minimum_cohort} exceeds the {count} silos")
        if not count / 2 < sums.threshold <= count:
            raise ValueError(
                f"secure_aggregation.threshold: must be more than half of the {count} silos and at most {count}"
            )
        largest = min(2 * sums.threshold - count - 1, sums.threshold - 2)
        if sums.colluders > largest:
            raise ValueError(
                f"secure_aggregation.colluders: threshold {sums.threshold} of {count} withstands at most {largest}"
            )
        if count * (math.ceil(math.ldexp(sums.clip, sums.fraction_bits)) + 1) >= _RING_LIMIT:
            raise ValueError(
                "secure_aggregation: silos * (clip * 2**fraction_bits + 1) must stay below 2**30, or sums would "
                "wrap; lower fraction_bits or clip"
            )
        self._check_stages()
        return self

    def _check_stages(self) -> None:
        """What the later stages need of one another and of the ring.

        Raises:
            ValueError: names the key.
        """
        fit, evaluation = self.routing_fit, self.evaluation
        for key in ("shared_weight", "home_weight"):
            if getattr(self.queries, key) != getattr(Queries(), key) and not self.shared_classes:
                raise ValueError(f"queries.{key}: there is no shared target head (routing_fit.shared_target)")
        for silo in self.own_targets or {}:
            _in_section(f"own_targets.{silo}", functools.partial(self._check_own, silo))
        later = (fit.sums if fit else 0) + (evaluation.attempts if evaluation else 0)
        if self.training.rounds + later > MAXIMUM_ROUNDS:
            raise ValueError(f"a job has at most {MAXIMUM_ROUNDS} rounds in all its stages")
        if fit is not None:
            if set(fit.public_sizes) != set(self.silos):
                raise ValueError("routing_fit.public_sizes: must give every silo's public size and no other's")
            if self.model.embedding(self.shape) > MAXIMUM_EMBEDDING:
                raise ValueError(f"routing_fit: the embedding may have at most {MAXIMUM_EMBEDDING} numbers")
            _in_section("routing_fit", lambda: check_ring(fit.event(self.fit_entries, self.shares), fit.largest_silo))
        if evaluation is not None:
            _in_section("evaluation", lambda: check_ring(evaluation.event(self.shares), evaluation.largest_silo))
        if self.personal_head is not None:
            self._check_head(self.personal_head)

    def _check_head(self, head: PersonalHead) -> None:
        """What stage 3 needs of the other stages.

        Raises:
            ValueError: names the key.
        """
        # Of equal noise and rate the two stages' steps are one event.
        if self.training.rounds * self.training.local_steps + head.steps > MAXIMUM_STEPS:
            raise ValueError(f"personal_head.steps: with training's more than {MAXIMUM_STEPS} steps")
        _in_section("personal_head.tensors", lambda: self.tuned)
        if head.start == "shared" and not self.shared_classes:
            raise ValueError("personal_head.start: there is no shared target head (routing_fit.shared_target)")
        if head.start == "shared" and not {"target_head.weight", "target_head.bias"} <= self.tuned:
            raise ValueError("personal_head.start: the target head is not among the tensors that are tuned")

    def _check_own(self, silo: str) -> None:
        if silo not in self.silos:
            raise ValueError("is none of the plan's silos")
        if not {t.name for t in self.tensors if t.name.startswith("target_head.")} <= self.personal:
            raise ValueError("the target head is shared (model.personal), so that all silos have the same classes")
        if (size := self.at(silo).parameters) > MAXIMUM_PARAMETERS:
            raise ValueError(f"{size} parameters exceed the limit of {MAXIMUM_PARAMETERS}")

    def at(self, silo: str) -> Self:
        """The plan as a silo computes by it: with its own target where it has one. What silos share, sign and send is
        the same in both, so that this one is for reading records, for the target head and for answers only."""
        target = (self.own_targets or {}).get(silo)
        if target is None:
            return self
        return self.model_copy(update={"schema_": self.schema_.with_target(target)})

    @property
    def questions(self) -> tuple[int, ...]:
        """Of each silo in order, which of the plan's targets it answers, numbered by first appearance: only the answers
        of equal numbers may be averaged."""
        targets = [self.at(silo).schema_.target for silo in self.silos]
        return tuple(targets.index(target) for target in targets)

    @property
    def smallest_cohort(self) -> int:
        """The fewest silos that are ever in a sum: the larger of threshold and minimum cohort."""
        return max(self.secure_aggregation.threshold, self.secure_aggregation.minimum_cohort)

    @property
    def shares(self) -> int:
        """s: how many silos' shares of noise protect every sum: all that are in the smallest one, less the colluders,
        who know their own."""
        return self.smallest_cohort - self.secure_aggregation.colluders

    @property
    def shared_classes(self) -> int:
        """Classes of the target head that the routing fit makes for all silos; 0 if it makes none. Ask the whole plan:
        that of one silo (`at`) may have other classes."""
        fitted = self.routing_fit is not None and self.routing_fit.shared_target
        return len(self.schema_.target.classes) if fitted else 0

    @property
    def fit_entries(self) -> int:
        """Entries of a silo's contribution to the routing fit: a row of weights and a bias for each silo, and for each
        class of a shared target head."""
        return (len(self.silos) + self.shared_classes) * (self.model.embedding(self.shape) + 1)

    @property
    def shape(self) -> Shape:
        """What the network is given of one record."""
        return self.model.inputs(self.schema_.shape)

    @property
    def width(self) -> int:
        """How many numbers the network is given of one record, each in [-1, 1]."""
        return math.prod(self.shape)

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All tensors of the network in order."""
        return tensors_of(self.model, self.shape, len(self.silos), len(self.schema_.target.classes))

    @property
    def personal(self) -> frozenset[str]:
        """Names of the tensors that every silo keeps to itself."""
        return matching(self.model.personal, self.tensors)

    @property
    def holdable(self) -> tuple[TensorSpec, ...]:
        """The tensors that consolidation may hold."""
        personal = self.personal
        return tuple(tensor for tensor in self.tensors if tensor.part != "routing" and tensor.name not in personal)

    @property
    def held(self) -> frozenset[str]:
        """Names of the shared tensors that consolidation holds: never the routing head, some of whose places hold noise
        alone (feddrm.method.signal_free).

        Raises:
            ValueError: a pattern chooses none. "*" may: where nothing else is shared, nothing is held.
        """
        if self.training.ewc is None:
            return frozenset()
        if self.training.ewc.tensors == ("*",):
            return frozenset(tensor.name for tensor in self.holdable)
        try:
            return matching(self.training.ewc.tensors, self.holdable)
        except ValueError as error:
            raise ValueError(f"{error} that is shared, besides the routing head's") from error

    @property
    def tuned(self) -> frozenset[str]:
        """Names of the tensors that stage 3 tunes at every silo: never the routing head, of which a silo's own copy
        would be of no use."""
        if self.personal_head is None:
            return frozenset()
        tensors = [tensor for tensor in self.tensors if tensor.part != "routing"]
        return matching(self.personal_head.tensors, tensors)

    @property
    def unroutable(self) -> str:
        """Why no querier could be routed by what this plan trains; empty if one could. Such a plan may be compared with
        others (feddrm.compare), and is neither signed nor accepted."""
        kept = sorted(name for name in self.personal if not name.startswith("target_head."))
        return f"model.personal: {kept[0]} is personal, so that no querier could be routed" if kept else ""

    @property
    def parameters(self) -> int:
        """Number of weights and biases, shared and personal."""
        return sum(tensor.size for tensor in self.tensors)

    def body(self) -> bytes:
        """The canonical bytes that the operator signs (RFC 8785 JSON)."""
        return rfc8785.dumps(self.model_dump(mode="json", by_alias=True))


def _in_section(section: str, check: Callable[[], object]) -> None:
    try:
        check()
    except ValueError as error:
        raise ValueError(f"{section}: {error}") from error


def plan_hash(body: bytes) -> bytes:
    """SHA-256 that names a plan everywhere, over the signed bytes as received (32 bytes)."""
    return hashlib.sha256(labels.PLAN_HASH + body).digest()


def default_threshold(silos: int) -> int:
    """Default threshold: floor(2K/3) + 1 (design section 3)."""
    return 2 * silos // 3 + 1
