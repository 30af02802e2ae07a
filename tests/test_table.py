"""Frames of declared rows: types come from the declaration, and what does not fit it is refused by name."""

from typing import Annotated

import pandas as pd
import pytest

from steptrace.documents.base import Document, field, key
from steptrace.documents.table import frame_of, names_of, validate
from steptrace.errors import SchemaError


class Call(Document, frozen=True):
    """One call."""

    name: Annotated[str | None, field("Name.")]
    ns: Annotated[int | None, field("Length.")]
    count: Annotated[int, key("", "How many.")]
    share: Annotated[float | None, field("Of all.")]
    whole: Annotated[bool, field("Whether all are there.")]


#: No float64 holds it.
_LARGE = (1 << 60) + 1
_ROW = {"name": "a", "ns": _LARGE, "count": 1, "share": 0.5, "whole": True}


def test_rows_get_the_declared_types_and_keep_every_digit() -> None:
    frame = frame_of(Call, [_ROW, {**_ROW, "name": None, "ns": None, "count": _LARGE, "share": None}])
    assert [str(dtype) for dtype in frame.dtypes[1:]] == ["Int64", "int64", "float64", "bool"]
    assert frame["ns"].tolist() == [_LARGE, pd.NA]
    assert frame["count"].tolist() == [1, _LARGE]
    assert frame["share"].isna().tolist() == [False, True]


def test_without_rows_there_are_the_declared_columns() -> None:
    frame = frame_of(Call)
    assert frame.columns.tolist() == names_of(Call)
    assert [str(dtype) for dtype in frame.dtypes[1:]] == ["Int64", "int64", "float64", "bool"]


def test_one_value_stands_for_a_column_and_none_for_nulls() -> None:
    columns = {"count": [1, 2], "whole": False, "ns": None, "share": None, "name": "b"}
    frame = frame_of(Call, columns)
    assert frame["ns"].isna().all()
    assert str(frame["ns"].dtype) == "Int64"
    assert frame["name"].tolist() == ["b", "b"]


def test_whole_numbers_that_became_floats_are_whole_again() -> None:
    joined = pd.DataFrame({**_ROW, "ns": [3.0, float("nan")], "count": [1.0, 2.0]})
    frame = frame_of(Call, joined)
    assert frame["ns"].tolist() == [3, pd.NA]
    assert frame["count"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"share": ["a"]}, r"Call.share: column holds values of another type"),
        ({"count": [None]}, r"Call.count: column holds nulls"),
        ({"count": [1.5]}, r"Call.count: column holds values of another type"),
        ({"whole": [None]}, r"Call.whole: column holds nulls"),
        ({"whole": ["no"]}, r"Call.whole: column holds values of another type"),
        ({"name": 1}, r"Call.name: column has dtype int64"),
        ({"more": 1}, r"unknown columns \['more'\]"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], says: str) -> None:
    given = {name: [value] for name, value in _ROW.items()} | change
    with pytest.raises(SchemaError, match=says):
        frame_of(Call, given)


def test_a_row_with_another_column_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"unknown columns \['more'\]"):
        frame_of(Call, [_ROW, {**_ROW, "more": 1}])


def test_nulls_and_rows_with_one_key_are_refused() -> None:
    with pytest.raises(SchemaError, match="column holds nulls"):
        validate(frame_of(Call, [_ROW]).astype({"whole": "boolean"}).assign(whole=pd.NA), Call)
    with pytest.raises(SchemaError, match="two rows have the key"):
        validate(frame_of(Call, [_ROW, _ROW]), Call)
