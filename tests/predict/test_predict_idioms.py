"""Every idiom of `tests/idioms.txt` is predicted as its line says. `tests/standin/test_idioms.py` holds the lines."""

import pytest

import idioms
from idioms import Counts, Idiom

TABLE = idioms.read_table()


@pytest.fixture(scope="module")
def predicted() -> dict[str, Counts]:
    return idioms.predict([idiom.code for idiom in TABLE])


@pytest.mark.parametrize("idiom", TABLE, ids=[idiom.code for idiom in TABLE])
def test_an_idiom_is_predicted_as_its_line_says(idiom: Idiom, predicted: dict[str, Counts]) -> None:
    counts = predicted[idiom.code]
    assert not counts.error
    assert (counts.predicted, counts.unknown) == (idiom.expected.predicted, idiom.expected.unknown)


def test_idioms_occur_once() -> None:
    codes = [idiom.code for idiom in TABLE]
    assert len(set(codes)) == len(codes)


def test_lines_that_differ_have_a_reason() -> None:
    assert [idiom.code for idiom in TABLE if not idiom.agrees and not idiom.reason] == []


def test_a_line_is_read() -> None:
    assert idioms.parse("2/3/1?  f(x)  # why").expected == Counts(2, 3, 1, unknown=True)
    assert idioms.parse("1  x = 'a # b'").agrees
    with pytest.raises(AssertionError, match="not a line"):
        idioms.parse("many  f(x)")
