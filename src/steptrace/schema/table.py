"""What a table is: its columns with dtype, unit and meaning; `frame_of`, `validate`, `write_table`, `read_table`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steptrace.errors import SchemaError
from steptrace.files import check_version

if TYPE_CHECKING:  # imported where it is needed: reading a declaration does not take half a second
    import pandas as pd

#: In the metadata of a parquet file.
_VERSION_KEY: Final = b"steptrace.schema_version"
_VERSION: Final = 1
#: The pandas dtypes that a column of a declared dtype may have.
_KINDS: dict[str, str] = {
    "int64": "iu",
    "float64": "f",
    "bool": "b",
    "string": "OSUT",
}
#: The dtypes that pandas and a declaration name alike; they hold no nulls.
_COMPLETE: Final = ("int64", "bool")


@dataclass(frozen=True)
class Column:
    """One column: its name, dtype (`int64`, `float64`, `bool`, `string`), meaning, unit and whether it may be null."""

    name: str
    dtype: str
    meaning: str
    unit: str | None = None
    nullable: bool = False


class Table:
    """One table: its name, what a row is, its columns, their names, and the columns that together identify a row."""

    def __init__(self, name: str, doc: str, *columns: Column, key: tuple[str, ...] = ()) -> None:
        self.name, self.doc, self.columns, self.key = name, doc, columns, key
        self.names = [column.name for column in columns]

    def __repr__(self) -> str:
        return f"Table({self.name}: {', '.join(self.names)})"


def validate(frame: "pd.DataFrame", table: Table, *, check_key: bool = True) -> "pd.DataFrame":
    """Return `frame` with its columns in declared order, or raise `SchemaError` naming the first defect.

    `check_key` also looks for duplicate keys, which takes as much memory as the table itself.
    """
    if list(frame.columns) != table.names:
        missing = [name for name in table.names if name not in frame.columns]
        unknown = [str(name) for name in frame.columns if name not in table.names]
        if missing or unknown:
            raise SchemaError(
                f"table has missing columns {missing} and unknown columns {unknown}",
                where=table.name,
                expected=", ".join(table.names),
            )
        frame = frame[table.names]
    for column, dtype in zip(table.columns, frame.dtypes, strict=True):
        if str(dtype) != column.dtype or column.dtype not in _COMPLETE:
            _validate_column(frame[column.name], column, table)
    if check_key and table.key and len(frame) > 1 and frame.duplicated(list(table.key)).any():
        row = frame[frame.duplicated(list(table.key))].iloc[0][list(table.key)].to_dict()
        raise SchemaError(f"two rows have the key {row}", where=table.name)
    return frame


def frame_of(
    table: Table, data: "pd.DataFrame | Mapping[str, Any] | Sequence[Mapping[str, Any]]" = ()
) -> "pd.DataFrame":
    """The frame of a table from a frame, its columns, or its rows; without any it is empty. See `validate`.

    Lists, objects, and whole numbers held as floats get the declared dtype. None is null, for a whole column too.

    Raises:
        SchemaError: as `validate`; a row has other columns; a value is not of the declared type.
    """
    import pandas as pd

    if not isinstance(data, pd.DataFrame):
        columns = data if isinstance(data, Mapping) else _columns_of(data, table)
        data = pd.DataFrame({n: pd.Series(v, dtype=object) if _is_loose(v) else v for n, v in columns.items()})
    kinds = {str(name): dtype.kind for name, dtype in data.dtypes.items()}
    dtypes = {
        column.name: "Int64" if column.nullable and column.dtype == "int64" else column.dtype
        for column in table.columns
        if column.dtype != "string" and kinds.get(column.name) in (("O", "f") if column.dtype == "int64" else ("O",))
    }
    for column in table.columns:
        if column.name in dtypes:
            _validate_values(data[column.name], column, table)
    return validate(data.astype(dtypes) if dtypes else data, table)


def _columns_of(rows: "Sequence[Mapping[str, Any]]", table: Table) -> dict[str, list[Any]]:
    names = set(table.names)
    if odd := next((row for row in rows if row.keys() != names), None):
        raise SchemaError(f"a row has the columns {', '.join(odd)}", where=table.name, expected=", ".join(table.names))
    return {name: [row[name] for row in rows] for name in table.names}


#: Column dtype -> the types that `infer_dtype` may give for values to be cast to it.
_TYPES: Final = {
    "int64": ("integer", "floating"),
    "float64": ("floating", "integer", "mixed-integer-float"),
    "bool": ("boolean",),
}


def _validate_values(values: "pd.Series[Any]", column: Column, table: Table) -> None:
    """Refuse values that a cast would change: None into False, 1.5 into 1, "no" into True."""
    from pandas.api.types import infer_dtype

    where, present = f"{table.name}.{column.name}", values.dropna()
    if len(present) < len(values) and not column.nullable:
        raise SchemaError("column holds nulls", where=where, expected="a value in every row")
    inferred = infer_dtype(present)
    if inferred not in (*_TYPES[column.dtype], "empty"):
        raise SchemaError(f"column holds {inferred} values", where=where, expected=column.dtype)
    if column.dtype == "int64" and inferred == "floating" and bool((present % 1 != 0).any()):
        raise SchemaError("column holds fractions", where=where, expected=column.dtype)


def _is_loose(values: Any) -> bool:
    return isinstance(values, list) or getattr(getattr(values, "dtype", None), "kind", "") == "O"


def _validate_column(values: "pd.Series[Any]", column: Column, table: Table) -> None:
    where = f"{table.name}.{column.name}"
    if not column.nullable and bool(values.isna().any()):
        raise SchemaError("column holds nulls", where=where, expected="a value in every row")
    kind = values.dtype.kind
    # A nullable column without any value carries no type of its own.
    if kind not in _KINDS[column.dtype] and not bool(values.isna().all()):
        raise SchemaError(f"column has dtype {values.dtype}", where=where, expected=column.dtype)


def write_table(frame: "pd.DataFrame", path: Path) -> None:
    """Write a frame as parquet, without its index, with the version of tables in the metadata."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_pandas(frame, preserve_index=False)
    parquet.write_table(table.replace_schema_metadata(with_version(table.schema.metadata)), path)


def with_version(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes]:
    """The metadata of a table with the version of tables."""
    return {**(metadata or {}), _VERSION_KEY: b"%d" % _VERSION}


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


def is_versioned(path: Path) -> bool:
    """Whether a file is a table with a version, as every table of steptrace is."""
    from pyarrow import ArrowException, parquet

    try:
        return _VERSION_KEY in (parquet.read_schema(path).metadata or {})
    except (OSError, ArrowException):
        return False


def check_table_version(metadata: Mapping[bytes, bytes], path: Path) -> None:
    """Raise `RecordError` if the metadata of a parquet file have another version of tables."""
    version = metadata.get(_VERSION_KEY, b"%d" % _VERSION).decode(errors="replace")
    check_version(int(version) if version.isdecimal() else version, path, _VERSION)
