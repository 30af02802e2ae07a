"""The documents' schemas are committed as they are made, and rows of tables agree with their tables."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec import inspect

from documents import fill, plain
from steptrace.document_schemas import DOCUMENTS, TABLE_OF, schema_of
from steptrace.documents import rows
from steptrace.documents.base import Document, convert
from steptrace.documents.baseline import Baseline
from steptrace.documents.comparison import Comparison
from steptrace.documents.summary import Summary
from steptrace.documents.verdict import Verdict
from steptrace.errors import RecordError
from steptrace.schema import Table

#: Something of each kind to be checked.
PARTS: dict[type[Document], dict[str, Any]] = {
    Summary: {"traces": [{"syncs": {"sites": [{}]}}]},
    Comparison: {"variants": [{"runs": [{}]}], "gates": [{"limits": {"at_most": 1}, "value": 2}]},
    Verdict: {"failed": [{"run": "run0"}], "differs": [{}], "gates": [{"value": None}]},
    Baseline: {"studies": {"s": {"scale": "cpu", "environment": {"cpu_count": 8}, "variants": {}}}},
}
FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
DTYPES = {inspect.IntType: "int64", inspect.FloatType: "float64", inspect.StrType: "string", inspect.BoolType: "bool"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_committed_schema_is_the_one_that_is_made(name: str) -> None:
    committed = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert committed == json.loads(json.dumps(schema_of(name))), "python -m steptrace.document_schemas docs"


@pytest.mark.parametrize("kind", PARTS)
def test_a_document_fits_its_schema_and_another_does_not(kind: type[Document]) -> None:
    schema = schema_of(kind.__name__.lower())
    document = plain(fill(kind, PARTS[kind]))
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"schema_version": "one"}, schema)


@pytest.mark.parametrize(("kind", "table"), TABLE_OF.items(), ids=lambda value: getattr(value, "__name__", None))
def test_a_row_has_the_columns_types_and_nulls_of_its_table(kind: type[Document], table: Table) -> None:
    columns = {column.name: (column.dtype, column.nullable) for column in table.columns}
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    found = {}
    for field in info.fields:
        types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        (value,) = (one for one in types if not isinstance(one, inspect.NoneType))
        found[field.encode_name] = (DTYPES[type(value)], len(types) == 2)
    assert found == {name: columns[name] for name in found}
    assert set(columns) - set(found) <= {"device_type", "device"}  # those that stand in the entry around the rows


def test_every_row_names_its_table() -> None:
    kinds = {kind for kind in vars(rows).values() if isinstance(kind, type) and issubclass(kind, Document)}
    assert kinds - {Document} == set(TABLE_OF)


def test_an_unknown_or_missing_key_is_refused_with_its_place() -> None:
    with pytest.raises(RecordError, match=r"launch_coverage.*\$\.traces\[0\]\.quality"):
        convert({"schema_version": 1, "warnings": [], "traces": [_without_coverage()]}, Summary)


def _without_coverage() -> dict[str, object]:
    trace = plain(fill(Summary, {"traces": [{}]}))["traces"][0]
    del trace["quality"]["launch_coverage"]
    return dict(trace)
