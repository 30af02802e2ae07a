"""Every idiom of the tables in `tests/` is predicted as its line says. `standin/test_idioms.py` holds the lines."""

import pytest

import idioms
from idioms import Counts

TABLE = idioms.read_tables()


def test_every_idiom_is_predicted_as_its_line_says():
    predicted = idioms.predict([idiom.code for idiom in TABLE])
    expected = {i.code: Counts(None, None, i.expected.predicted, i.expected.unknown) for i in TABLE}
    assert {code: counts for code, counts in predicted.items() if counts != expected[code]} == {}
    assert predicted.keys() == expected.keys()


def test_lines_that_differ_have_a_reason():
    assert [idiom.code for idiom in TABLE if not idiom.agrees and not idiom.reason] == []


def test_a_line_is_read():
    assert idioms.parse("2/3/1?  f(x)  # why").expected == Counts(2, 3, 1, unknown=True)
    assert idioms.parse("1  x = 'a # b'").agrees
    with pytest.raises(AssertionError, match="not a line"):
        idioms.parse("many  f(x)")
