"""Tables as frames and Parquet files. A table is declared by the type of its rows (`documents.column`).

Names ending in `_ns` are int64 nanoseconds. What a column may hold follows from its type: `int | None` may be null.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steptrace.documents.base import Document
from steptrace.documents.column import Column, columns_of, keys_of
from steptrace.errors import SchemaError
from steptrace.files import check_version

if TYPE_CHECKING:  # imported where it is needed: reading a declaration does not take half a second
    import pandas as pd

#: In the metadata of a parquet file.
_VERSION_KEY: Final = b"steptrace.schema_version"
_VERSION: Final = 1
#: The pandas dtypes that a column of a declared dtype may have.
_KINDS: dict[str, str] = {"int64": "iu", "float64": "f", "bool": "b", "string": "OSUT"}
#: The dtypes that pandas and a declaration name alike; they hold no nulls.
_COMPLETE: Final = ("int64", "bool")


def names_of(kind: type[Document]) -> list[str]:
    """The names of the columns of a kind of row, in order."""
    return list(kind.__struct_encode_fields__)


def validate(frame: "pd.DataFrame", kind: type[Document]) -> "pd.DataFrame":
    """Return a frame of such rows with its columns in declared order, or raise `SchemaError` naming the first defect.

    No two rows may have the same keys.
    """
    frame, keys = _fitting(frame, kind), [column.name for column in keys_of(kind)]
    if keys and len(frame) > 1 and (again := frame.duplicated(keys)).any():
        raise SchemaError(f"two rows have the key {frame[again].iloc[0][keys].to_dict()}", where=kind.__name__)
    return frame


def _fitting(frame: "pd.DataFrame", kind: type[Document]) -> "pd.DataFrame":
    names = names_of(kind)
    if list(frame.columns) != names:
        missing = [name for name in names if name not in frame.columns]
        unknown = [str(name) for name in frame.columns if name not in names]
        if missing or unknown:
            raise SchemaError(
                f"table has missing columns {missing} and unknown columns {unknown}",
                where=kind.__name__,
                expected=", ".join(names),
            )
        frame = frame[names]
    for column, dtype in zip(columns_of(kind), frame.dtypes, strict=True):
        if str(dtype) != column.dtype or column.dtype not in _COMPLETE:
            _validate_column(frame[column.name], column, f"{kind.__name__}.{column.name}")
    return frame


def frame_of(
    kind: type[Document], data: "pd.DataFrame | Mapping[str, Any] | Sequence[Mapping[str, Any]]" = ()
) -> "pd.DataFrame":
    """The frame of a kind of row from a frame, its columns, or its rows; without any it is empty.

    Lists, objects, and whole numbers held as floats get the declared dtype. None is null, for a whole column too.

    Raises:
        SchemaError: a column is missing or unknown; a value is not of the declared type.
    """
    import pandas as pd

    if not isinstance(data, pd.DataFrame):
        columns = data if isinstance(data, Mapping) else _by_column(data, kind)
        data = pd.DataFrame({n: pd.Series(v, dtype=object) if _is_loose(v) else v for n, v in columns.items()})
    kinds = {str(name): dtype.kind for name, dtype in data.dtypes.items()}
    dtypes = {
        column.name: "Int64" if column.nullable and column.dtype == "int64" else column.dtype
        for column in columns_of(kind)
        if column.dtype != "string" and kinds.get(column.name) in (("O", "f") if column.dtype == "int64" else ("O",))
    }
    for column in columns_of(kind):
        if column.name in dtypes:
            _validate_values(data[column.name], column, f"{kind.__name__}.{column.name}")
    return _fitting(data.astype(dtypes) if dtypes else data, kind)


def _by_column(rows: "Sequence[Mapping[str, Any]]", kind: type[Document]) -> dict[str, list[Any]]:
    names = names_of(kind)
    if odd := next((row for row in rows if row.keys() != {*names}), None):
        raise SchemaError(f"a row has the columns {', '.join(odd)}", where=kind.__name__, expected=", ".join(names))
    return {name: [row[name] for row in rows] for name in names}


#: Column dtype -> the types that `infer_dtype` may give for values to be cast to it.
_TYPES: Final = {
    "int64": ("integer", "floating"),
    "float64": ("floating", "integer", "mixed-integer-float"),
    "bool": ("boolean",),
}


def _validate_values(values: "pd.Series[Any]", column: Column, where: str) -> None:
    """Refuse values that a cast would change: None into False, 1.5 into 1, "no" into True."""
    from pandas.api.types import infer_dtype

    present = values.dropna()
    if len(present) < len(values) and not column.nullable:
        raise SchemaError("column holds nulls", where=where, expected="a value in every row")
    inferred = infer_dtype(present)
    if inferred not in (*_TYPES[column.dtype], "empty"):
        raise SchemaError(f"column holds {inferred} values", where=where, expected=column.dtype)
    if column.dtype == "int64" and inferred == "floating" and bool((present % 1 != 0).any()):
        raise SchemaError("column holds fractions", where=where, expected=column.dtype)


def _is_loose(values: Any) -> bool:
    return isinstance(values, list) or getattr(getattr(values, "dtype", None), "kind", "") == "O"


def _validate_column(values: "pd.Series[Any]", column: Column, where: str) -> None:
    if not column.nullable and bool(values.isna().any()):
        raise SchemaError("column holds nulls", where=where, expected="a value in every row")
    kind = values.dtype.kind
    # A nullable column without any value carries no type of its own.
    if kind not in _KINDS[column.dtype] and not bool(values.isna().all()):
        raise SchemaError(f"column has dtype {values.dtype}", where=where, expected=column.dtype)


def write_table(frame: "pd.DataFrame", path: Path) -> None:
    """Write a frame as parquet, without its index, with the version of tables in the metadata.

    Only texts are dictionary-encoded: for times this would double the cost of writing.
    """
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_pandas(frame, preserve_index=False)
    texts = [str(name) for name, dtype in frame.dtypes.items() if dtype.kind not in "iufb"]
    metadata = {**(table.schema.metadata or {}), _VERSION_KEY: b"%d" % _VERSION}
    parquet.write_table(table.replace_schema_metadata(metadata), path, use_dictionary=texts)


def read_table(path: Path) -> "pd.DataFrame":
    """A parquet file as a frame.

    Raises:
        RecordError: its version of tables differs.
        OSError, ValueError: it is missing or cannot be read.
    """
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        check_table_version(file.schema_arrow.metadata or {}, path)
        frame: pd.DataFrame = file.read().to_pandas()
        return frame


def check_table_version(metadata: Mapping[bytes, bytes], path: Path) -> None:
    """Raise `RecordError` if the metadata of a parquet file have another version of tables."""
    version = metadata.get(_VERSION_KEY, b"%d" % _VERSION).decode(errors="replace")
    check_version(int(version) if version.isdecimal() else version, path, _VERSION)
