"""`python -m steptrace.python_reference > docs/reference/python.md`: the names that steptrace offers to Python."""

import inspect
from collections.abc import Iterator
from typing import Any, Final

import steptrace
from steptrace.analysis.common.registry import ROW_TYPES
from steptrace.documents.base import Document, columns_of
from steptrace.library import ROWS_OF_STUDY, TABLE_OF
from steptrace.markdown import table

#: Of classes that do more than their users ask of them: what users ask.
_MEMBERS: Final = {
    "Syncs": (
        "total",
        "sites",
        "unknown",
        "assumed",
        "early_reads",
        "peak_memory_bytes",
        "reset",
        "step_ends",
        "estimate",
        "to_frame",
    ),
}
_HEAD = """# Python

Generated from the docstrings by `python -m steptrace.python_reference`; a test compares them. All names are in
`steptrace`: `import steptrace`, then `steptrace.load_trace(...)`.

What was not measured is null: NaN in a column of floating-point numbers, `<NA>` in one of whole numbers, None of words.
Times of traces are in nanoseconds (`ns`), those of studies in milliseconds (`ms`). A share lies between 0 and 1.
"""


def render() -> str:
    """The page."""
    return "\n".join([_HEAD, *(part for name in steptrace.__all__ for part in _described(name))])


def _described(name: str) -> Iterator[str]:
    """A function, or a class with its methods and properties."""
    value = getattr(steptrace, name)
    if not inspect.isclass(value):
        yield f"## steptrace.{name}{_signature(value)}\n"
        yield f"{_text(value)}\n"
        return
    yield f"## steptrace.{name}\n"
    yield f"{_text(value)}\n"
    fields = getattr(value, "__dataclass_fields__", ())  # the docstring of the class has them
    for member, content in vars(value).items():
        if member.startswith("_") or member in fields or member not in _MEMBERS.get(name, (member,)):
            continue
        if inspect.isfunction(content):
            yield f"### {name}.{member}{_signature(content)}\n"
        else:
            yield f"### {name}.{member}\n"
        yield f"{_text(content)}\n"
        rows = _rows_of(name, member)
        if rows is not None:
            yield _columns(rows)


def _rows_of(name: str, member: str) -> type[Document] | None:
    """The type of the rows of a DataFrame; None of any other member."""
    if name == "LoadedStudy":
        return ROWS_OF_STUDY.get(member)
    if name == "LoadedTrace" and member in TABLE_OF:
        return ROW_TYPES[TABLE_OF[member]]
    return None


def _columns(kind: type[Document]) -> str:
    return table(
        ("column", "unit", "meaning"),
        [(f"`{column.name}`", column.unit or "", column.meaning) for column in columns_of(kind)],
    )


def _signature(function: Any) -> str:
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    return f"({', '.join(parameters)})"


def _text(value: Any) -> str:
    """A docstring as Markdown: its sections become bold words, its examples code."""
    lines = []
    is_code = False
    for line in (inspect.getdoc(value) or "").splitlines():
        if line in ("Args:", "Returns:", "Raises:", "Attributes:", "Example:"):
            if is_code:
                lines += ["```"]
            is_code = line == "Example:"
            lines += [f"**{line[:-1]}**", "", *(["```python"] if is_code else [])]
        elif is_code:
            lines.append(line.removeprefix("    "))
        elif line.startswith("    ") and not line.startswith("     "):
            name, colon, meaning = line.strip().partition(": ")
            is_name = bool(colon) and " " not in name
            lines.append(f"- `{name}`: {meaning}" if is_name else line.strip())
        else:
            lines.append(f"  {line.strip()}" if line.startswith("     ") else line)
    return "\n".join([*lines, *(["```"] if is_code else [])]).rstrip()


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201
