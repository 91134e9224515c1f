"""Names and field types that every contract document shares."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, NewType

from pydantic import AfterValidator, BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

SiloId = NewType("SiloId", str)

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\Z")


def check_name(value: str) -> str:
    """Return `value` if it may name a federation or a member (it becomes a file name and a URI part).

    Raises:
        ValueError: not 1 to 32 of a-z, 0-9 and inner hyphens.
    """
    if not _NAME.match(value):
        raise ValueError("must be 1 to 32 characters of a-z, 0-9 and inner hyphens, such as hospital-a")
    return value


Name = Annotated[str, AfterValidator(check_name)]


class Document(BaseModel):
    """Base of all contract documents: frozen, and unknown keys are errors, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Grown(Document):
    """A document with fields that came later: at their defaults they leave no key, so that what is signed has one text
    whether its author knew of them.

    Attributes:
        later: their names.
    """

    later: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        silent = {name for name in self.later if getattr(self, name) == fields[name].default}
        return {key: value for key, value in document.items() if key not in silent}
