"""What a page shows, as data: a test asks for a figure by the table, row and column that it stands in."""

import re
from typing import Final

from bs4 import BeautifulSoup, Tag

_PARSER: Final = "html.parser"


class Page:
    """A page, or a part of one."""

    def __init__(self, html: str) -> None:
        # Where a name may break, or must not, is no part of it.
        self._root = BeautifulSoup(re.sub(r'<wbr>|<span class="(?:nowrap|long)">([^<]*)</span>', r"\1", html), _PARSER)

    @property
    def ids(self) -> list[str]:
        """The ids of all elements, in their order."""
        return [str(tag["id"]) for tag in self._root.find_all(id=True)]

    def facts(self) -> dict[str, str]:
        """The single figures at the top of a page, or of a part, by their names."""
        return {
            _text(term): _text(value)
            for listed in self._root.select("dl.facts")
            for term, value in zip(listed.find_all("dt"), listed.find_all("dd"), strict=True)
        }

    def section(self, id_: str) -> "Page":
        """The section whose heading has this id."""
        heading = self._root.find(id=id_)
        assert heading is not None, f"no section {id_!r}"
        section = heading.find_parent("section")
        assert section is not None
        return Page(str(section))

    def rows(self, table: int = 0) -> list[dict[str, str]]:
        """The rows of a table, each with its cells by the heading of their column; "" where a heading is empty."""
        return [dict(zip(self.headings(table), cells, strict=True)) for cells in self._cells(table)]

    def headings(self, table: int = 0) -> list[str]:
        """The headings of a table's columns."""
        return [_text(head) for head in self._table(table).select("thead th")]

    def with_class(self, name: str) -> list[str]:
        """The texts of all elements of a class."""
        return [_text(tag) for tag in self._root.find_all(class_=name)]

    def attributes(self, name: str) -> list[str]:
        """The values of an attribute, such as `data-known`, of all elements that have it."""
        return [str(tag[name]) for tag in self._root.find_all(attrs={name: True})]

    @property
    def text(self) -> str:
        """All its words."""
        return _text(self._root)

    def _table(self, number: int) -> Tag:
        tables = self._root.find_all("table")
        assert number < len(tables), f"{len(tables)} tables"
        return tables[number]

    def _cells(self, number: int) -> list[list[str]]:
        rows = self._table(number).select("tbody tr")
        return [[_text(cell) for cell in row.find_all(["th", "td"], recursive=False)] for row in rows]


def _text(tag: Tag | BeautifulSoup) -> str:
    return " ".join(tag.get_text(" ").split())


def with_plain_spaces(html: str) -> str:
    """HTML in which the spaces before units are plain ones."""
    return html.replace("\N{NO-BREAK SPACE}", " ")
