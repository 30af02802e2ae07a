"""The texts of the advice tables: what a page shows as code stands in backticks."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from figures import bare_names_in
from steptrace import advice

TABLES = sorted(Path(advice.__file__).parent.glob("*.toml"))


def texts_of(value: Any) -> Iterator[str]:
    """The texts of a table, without its keys, lists of operators and links to other entries."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("operators", "same_as") or isinstance(inner, dict):
                yield from texts_of(inner)


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_names_of_code_stand_in_backticks(table: Path) -> None:
    texts = list(texts_of(tomllib.loads(table.read_text())))
    assert texts
    assert {text: bare for text in texts if (bare := bare_names_in(text))} == {}
    assert all(text.count("`") % 2 == 0 for text in texts)
