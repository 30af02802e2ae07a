"""Older versions of documents: each function makes content of one version into content of the next."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect


def known_keys(content: Any, kind: type[msgspec.Struct]) -> Any:
    """Version 1 to 2: version 1 had fewer keys at first, and others for a while.

    Keys that the present type lacks are left out, at any depth; missing ones are null or empty where they may be.
    """
    return _known(inspect.type_info(kind), content)


def _known(kind: inspect.Type, value: Any) -> Any:
    kind = _bare(kind)
    if isinstance(kind, inspect.UnionType):
        for one in map(_bare, kind.types):
            if isinstance(one, inspect.StructType | inspect.VarTupleType | inspect.DictType):
                return _known(one, value)
    if isinstance(kind, inspect.StructType) and isinstance(value, Mapping):
        lacking = {one.encode_name: _empty(one.type) for one in kind.fields if one.required and _may_be_empty(one.type)}
        known = {one.encode_name: one.type for one in kind.fields}
        return lacking | {name: _known(known[name], item) for name, item in value.items() if name in known}
    if isinstance(kind, inspect.VarTupleType) and isinstance(value, list):
        return [_known(kind.item_type, item) for item in value]
    if isinstance(kind, inspect.DictType) and isinstance(value, Mapping):
        return {name: _known(kind.value_type, item) for name, item in value.items()}
    return value


def _may_be_empty(kind: inspect.Type) -> bool:
    kind = _bare(kind)
    nullable = isinstance(kind, inspect.UnionType) and any(isinstance(one, inspect.NoneType) for one in kind.types)
    return nullable or isinstance(kind, inspect.VarTupleType | inspect.DictType | inspect.AnyType)


def _empty(kind: inspect.Type) -> Any:
    kind = _bare(kind)
    return [] if isinstance(kind, inspect.VarTupleType) else {} if isinstance(kind, inspect.DictType) else None


def _bare(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind
