"""`format.py` is the one place that turns numbers into text: no other module has a format specification for them."""

import ast
import re
from pathlib import Path
from typing import Final

PACKAGES: Final = [
    Path(__file__).parents[1] / "src" / name for name in ("steptrace", "snakemake_logger_plugin_steptrace")
]
#: Modules that may, each with the reason.
EXCEPTIONS: Final = {
    "steptrace/format.py": "it is the place",
    "steptrace/report/charts/svg.py": "coordinates and opacities of drawings, which nobody reads",
    "steptrace/report/charts/scale.py": "coordinates",
    "steptrace/report/charts/cells.py": "coordinates",
    "steptrace/report/charts/waterfall.py": "coordinates",
    "steptrace/commands/init/files/train.py": "a program for the user, which imports nothing of steptrace but its step",
    "steptrace/estimate/compiled.py": "a name by which kernels with the same work are told from others",
}
#: A specification of digits, of thousands, or of a number's form. Widths and alignments are none.
_OF_NUMBERS: Final = re.compile(r"[,_.]\d*[eEfFgGn%]?$|[eEfFgGn%]$")
#: The same in a text that is formatted later: `"{:.2f}".format(x)`, `"%.2f" % x`.
_LATER: Final = re.compile(r"\{\w*:[^{}]*(?:[,_]|\.\d+)[eEfFgGn%]?\}|%[-+ 0#]*\d*\.\d+[eEfFgG](?!\w)")


def specifications(source: str) -> list[tuple[int, str]]:
    """The lines of a program that format numbers, with the specification."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "1" for part in node.format_spec.values]
            text = "".join(map(str, parts))
            if _OF_NUMBERS.search(text) and "%Y" not in text:  # a date is no number
                found.append((node.lineno, text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (match := _LATER.search(node.value)):
            found.append((node.lineno, match[0]))
    return found


def test_what_is_a_specification_of_numbers() -> None:
    source = (
        'a = f"{x:.1f} {y:,} {z:g} {w:>8} {v:<{n}} {u!r}"\nb = "{:.2f}".format(x)\nc = "%.3g" % x\nd = "{name}: {x}"'
    )
    assert sorted(specifications(source)) == [(1, ","), (1, ".1f"), (1, "g"), (2, "{:.2f}"), (3, "%.3g")]


def test_numbers_are_formatted_in_one_place() -> None:
    found = {
        f"{path.relative_to(package.parent).as_posix()}:{line}: {text}"
        for package in PACKAGES
        for path in package.rglob("*.py")
        if path.relative_to(package.parent).as_posix() not in EXCEPTIONS
        for line, text in specifications(path.read_text(encoding="utf-8"))
    }
    assert not found, "use a function of steptrace.format, or add one there"


def test_every_exception_is_needed() -> None:
    for name in EXCEPTIONS:
        assert specifications((PACKAGES[0].parent / name).read_text(encoding="utf-8")), name
