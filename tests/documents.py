"""Documents for tests: `fill` makes a whole one of the part a test is about, `plain` turns one into JSON data."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from steptrace.documents.base import Document, convert

_Document = TypeVar("_Document", bound=Document)


def fill(kind: type[_Document], part: Mapping[str, Any]) -> _Document:
    """A document with the values of `part`, at any depth; what it lacks is null where that is allowed, else empty."""
    return convert(_filled(_type_of(kind), part), kind)


_type_of = functools.cache(msgspec.inspect.type_info)  # 20 ms for a comparison


def plain(document: Document) -> Any:
    """What a reader of the JSON file gets."""
    return json.loads(msgspec.json.encode(document))


def compare(study: Path) -> Any:
    """The content of a study's comparison.json, without findings."""
    from steptrace.compare.study import compare as compared  # imports pandas, which the workflow's fakes do without

    return plain(compared(study))


def an_estimate(low: float | None, high: float | None = None) -> dict[str, Any]:
    """A variant's estimate: a step and its GPU's work of `low` to `high` ms, or none for want of coverage."""
    times = None if low is None else [low, high]
    return {
        "gpu": "H100", "batch": 8, "step_ms": times, "gpu_ms": times, "host_ms": [1, 3], "launches": 200, "syncs": 2,
        "gpu_busy_pct": None if low is None else [80, 100], "limited_by": None if low is None else "memory",
        "peak_memory_bytes": 2**30, "fits": True, "largest_batch": None, "covered_pct": 95 if low else 50,
        "reason": None if low else "50 % of the GPU work is covered, 90 are needed: sort", "not_estimated": [],
    }  # fmt: skip


def _filled(kind: msgspec.inspect.Type, part: Any) -> Any:
    inspect = msgspec.inspect
    if isinstance(kind, inspect.Metadata):
        return _filled(kind.type, part)
    if isinstance(kind, inspect.UnionType):
        if part is None:
            return None
        structs = [one for one in map(_bare, kind.types) if isinstance(one, inspect.StructType)]
        lists = [one for one in map(_bare, kind.types) if isinstance(one, inspect.VarTupleType)]
        nested = structs if isinstance(part, Mapping) else lists
        return _filled(nested[0], part) if nested else part
    if isinstance(kind, inspect.StructType) and isinstance(part, Mapping):
        fields = {field.encode_name: field for field in kind.fields}
        given = {name: _filled(fields[name].type, value) if name in fields else value for name, value in part.items()}
        lacking = {name: _empty(field.type) for name, field in fields.items() if field.required and name not in given}
        return {**lacking, **given}
    if isinstance(kind, inspect.VarTupleType) and isinstance(part, list | tuple):
        return [_filled(kind.item_type, item) for item in part]
    return part


def _empty(kind: msgspec.inspect.Type) -> Any:
    inspect = msgspec.inspect
    kind = _bare(kind)
    if isinstance(kind, inspect.UnionType):
        return None if kind.includes_none else _empty(kind.types[0])
    if isinstance(kind, inspect.StructType):
        return _filled(kind, {})
    if isinstance(kind, inspect.VarTupleType):
        return []
    if isinstance(kind, inspect.TupleType):
        return [_empty(item) for item in kind.item_types]
    if isinstance(kind, inspect.DictType):
        return {}
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    if isinstance(kind, inspect.AnyType):
        return None
    return {inspect.IntType: 0, inspect.FloatType: 0.0, inspect.BoolType: False}.get(type(kind), "")


def _bare(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    return kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind
