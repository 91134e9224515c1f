"""The data schema of a plan: which columns, with which *public* bounds, become which features.

Nothing here may be computed from patients' data: bounds, bin edges and categories are public knowledge, agreed
before anybody reads a record (design section 7: statistics taken from the data leak).
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from feddrm.contract.images import Image
from feddrm.contract.names import Document, Grown


def _check_column(name: str) -> str:
    # Header cells are read without the blanks around them, and names are shown and entered into ledgers.
    if not name.isprintable() or name != name.strip():
        raise ValueError("a column's name must be printable, without blanks around it")
    return name


Marker = Annotated[str, Field(max_length=64)]
ColumnName = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_check_column)]
# Far from overflow, so that differences of two stay finite.
Bound = Annotated[float, Field(ge=-1e30, le=1e30)]
SMALLEST_SPAN = 1e-30


class Numeric(Document):
    """A number scaled from its public bounds to [-1, 1]; values outside are clipped to them.

    Produces one feature, plus one missingness indicator when `missing_indicator`.
    """

    kind: Literal["numeric"]
    name: ColumnName
    lower: Bound
    upper: Bound
    missing: tuple[Marker, ...] = ("",)
    missing_indicator: bool = True

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.lower < self.upper:
            raise ValueError(f"column {self.name}: lower must be below upper")
        if self.upper - self.lower < SMALLEST_SPAN:
            raise ValueError(f"column {self.name}: lower and upper are too close")
        return self

    @property
    def width(self) -> int:
        """Number of features."""
        return 1 + self.missing_indicator


class Binned(Document):
    """A number one-hot encoded by public bin edges: `edges` of n values make n + 1 bins, lower edge inclusive.

    Produces n + 1 features, plus one missingness indicator when `missing_indicator`.
    """

    kind: Literal["binned"]
    name: ColumnName
    edges: Annotated[tuple[Bound, ...], Field(min_length=1, max_length=256)]
    missing: tuple[Marker, ...] = ("",)
    missing_indicator: bool = True

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if any(a >= b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError(f"column {self.name}: edges must rise")
        return self

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.edges) + 1 + self.missing_indicator


class Categorical(Document):
    """A text value one-hot encoded by a public list of categories.

    An unlisted value is an input error where a person can mend it, and missing where a model is trained: whether
    training goes on must not depend on it.

    Produces one feature a category, plus one missingness indicator when `missing_indicator`.
    """

    kind: Literal["categorical"]
    name: ColumnName
    categories: Annotated[tuple[Marker, ...], Field(min_length=2, max_length=1024)]
    missing: tuple[Marker, ...] = ("",)
    missing_indicator: bool = True

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.categories)) != len(self.categories):
            raise ValueError(f"column {self.name}: categories must differ")
        if set(self.categories) & set(self.missing):
            raise ValueError(f"column {self.name}: a category is also a missing marker")
        return self

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.categories) + self.missing_indicator


Column = Annotated[Numeric | Binned | Categorical, Field(discriminator="kind")]


class Threshold(Document):
    """Two classes: class 1 where `column operator value` holds, class 0 where it does not."""

    kind: Literal["threshold"]
    column: ColumnName
    operator: Literal[">", ">=", "<", "<="]
    value: Bound
    labels: tuple[Marker, Marker]

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in order."""
        return self.labels


class Classes(Document):
    """One class for each listed text value of `column`, in this order."""

    kind: Literal["classes"]
    column: ColumnName
    values: Annotated[tuple[Marker, ...], Field(min_length=2, max_length=1024)]
    labels: tuple[Marker, ...] = ()

    @model_validator(mode="after")
    def _matching(self) -> Self:
        if len(set(self.values)) != len(self.values):
            raise ValueError("target: values must differ")
        if self.labels and len(self.labels) != len(self.values):
            raise ValueError("target: labels must be as many as values")
        return self

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in order."""
        return self.labels or self.values


Target = Annotated[Threshold | Classes, Field(discriminator="kind")]


class Schema(Grown):
    """How a table of records, or a file of images, becomes features, a target and a patient id."""

    later: ClassVar[frozenset[str]] = frozenset({"columns", "image"})

    patient: ColumnName
    target: Target
    columns: Annotated[tuple[Column, ...], Field(max_length=4096)] = ()
    image: Image | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.columns) == (self.image is not None):
            raise ValueError("give columns, or an image: one of them, and not both")
        names = [column.name for column in self.columns] if self.image is None else [self.image.name]
        if len(set(names)) != len(names):
            raise ValueError("columns: a name appears twice")
        if self.patient in names:
            raise ValueError(f"columns: the patient id {self.patient} may not be a feature")
        self._check_target(self.target)
        return self

    def _check_target(self, target: Target) -> None:
        names = {column.name for column in self.columns} if self.image is None else {self.image.name}
        if target.column in names:
            raise ValueError(f"columns: the target {target.column} may not be a feature")
        if target.column == self.patient:
            raise ValueError(f"target: the patient id {self.patient} may not be predicted")

    def with_target(self, target: Target) -> Self:
        """The same records with another target.

        Raises:
            ValueError: the target is a feature or the patient id.
        """
        self._check_target(target)
        return self.model_copy(update={"target": target})

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record: (channels, height, width) of images, else (features,)."""
        return (sum(column.width for column in self.columns),) if self.image is None else self.image.shape

    @property
    def width(self) -> int:
        """Number of features of one record."""
        return math.prod(self.shape)
