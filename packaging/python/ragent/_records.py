"""The conversion of JSON objects to frozen dataclasses."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Type, TypeVar, cast

_Record = TypeVar("_Record")


def one(kind: type) -> Any:
    """A field with an object of this dataclass, or `None`."""
    return dataclasses.field(default=None, metadata={"kind": kind})


def many(kind: type) -> Any:
    """A field with a tuple of objects of this dataclass."""
    return dataclasses.field(default=(), metadata={"kind": kind})


def variant() -> Any:
    """A field with the name of a variant, which has further values in JSON."""
    return dataclasses.field(default="", metadata={"is_variant": True})


def read(kind: Type[_Record], value: object) -> Optional[_Record]:
    """Returns the object as a dataclass. `None` if it is not an object.

    Fields that the dataclass does not have are ignored, and fields that the object does not have keep their defaults. A
    field `raw` contains the object itself.
    """
    if not isinstance(value, Mapping):
        return None
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, kind)):
        if field.name == "raw":
            arguments["raw"] = value
            continue
        item = value.get(field.name)
        if item is not None:
            arguments[field.name] = _field(field.metadata, item)
    return kind(**arguments)


def _field(metadata: Mapping[str, Any], item: Any) -> Any:
    kind = metadata.get("kind")
    if isinstance(item, list):
        items = item if kind is None else [read(kind, each) for each in item]
        return tuple(each for each in items if each is not None)
    if kind is not None:
        return read(kind, item)
    if metadata.get("is_variant") and isinstance(item, Mapping):
        return next(iter(item), "")
    return item
