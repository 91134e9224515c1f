"""The schema of images: their size and the public range of their values."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from feddrm.contract.names import Document

# Name of an array in a file of arrays (.npz), which keeps each one under its name.
ArrayName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]
Side = Annotated[int, Field(ge=1, le=1024)]
Bound = Annotated[float, Field(ge=-1e30, le=1e30)]
# What one record may be: a query carries it.
MAXIMUM_VALUES = 1 << 20


class Image(Document):
    """Images of one size, whose values are scaled from a *public* range to [-1, 1] and clipped to it.

    Attributes:
        name: of the array in the file.
        channels, height, width: of every image.
        lower, upper: the range, such as 0 and 255: of the format, never of the data.
    """

    name: ArrayName = "image"
    channels: Annotated[int, Field(ge=1, le=16)]
    height: Side
    width: Side
    lower: Bound
    upper: Bound

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if not self.upper - self.lower >= 1e-30:
            raise ValueError("lower must be below upper")
        if self.channels * self.height * self.width > MAXIMUM_VALUES:
            raise ValueError(f"an image may have at most {MAXIMUM_VALUES} values")
        return self

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return self.channels, self.height, self.width
