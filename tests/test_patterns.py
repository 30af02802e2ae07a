"""A regular expression's `$` also matches before a newline at the very end, so `name\\n` would pass as `name`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from steptrace.trace.names import step_index

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("src", "workflow", "ext") for path in (ROOT / folder).rglob("*.py"))
DOLLAR = re.compile(r"(?<!\\)\$")


def patterns(path: Path) -> Iterator[tuple[int, str]]:
    """The texts in calls of `re` without MULTILINE, where `$` is the end of each line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
            texts = [str(part.value) for part in ast.walk(node) if isinstance(part, ast.Constant)]
            if "MULTILINE" not in ast.unparse(node) and "(?m)" not in "".join(texts):
                yield from ((node.lineno, text) for text in texts)


def test_patterns_end_at_the_very_end() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{line}" for path in FILES for line, text in patterns(path) if DOLLAR.search(text)
    ]
    assert places == [], r"write \Z instead of $"


def test_a_step_s_name_with_a_newline_is_none() -> None:
    assert step_index("ProfilerStep#3") == 3
    assert step_index("ProfilerStep#3\n") is None
