"""A subject that is added from outside, as two modules, is everywhere that a trace's subjects are.

It is added to the package's folders of a process of its own; the processes that this one starts add it as well.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from builders import TraceBuilder, training_step
from steptrace.analysis.common import registry
from steptrace.documents.base import Row
from steptrace.documents.subject import TableSubject, subject
from steptrace.report.study.subject_view import PLAIN, views_of
from steptrace.report.trace.registry import section_for, section_of

ROWS = """
from typing import Annotated

from steptrace.documents.base import Row, column, described, key
from steptrace.documents.subject import TableSubject, subject


@described("The operators of one letter.")
class ToyRow(Row, frozen=True):
    letter: Annotated[str, key("Letter", "First letter.")]
    toy_ns: Annotated[int, column("Toy time", "Time in operators of this letter.", kind="total")]


SUBJECT = TableSubject("toys", ToyRow, subject("Toys", "no_host_event", "compared", after="idle"))
"""
COMPUTATION = """
from steptrace.analysis.common.registry import table_part
from steptrace.documents.subjects.toys import ToyRow
from steptrace.documents.table import frame_of


@table_part("toys")
def toys(trace):
    names = trace.ops["name"].astype(str).str.removeprefix("aten::").str[0]
    sums = trace.ops["dur"].groupby(names.to_numpy()).sum()
    return frame_of(ToyRow, {"letter": list(sums.index), "toy_ns": sums.to_numpy()})
"""
PROGRAM = """
import json, sys
import steptrace.documents.subjects
steptrace.documents.subjects.__path__.append({documents!r})
from importlib.machinery import PathFinder
import importlib.util
spec = importlib.util.find_spec("steptrace.analysis")
spec.submodule_search_locations.append({analysis!r})
package = importlib.util.module_from_spec(spec)
sys.modules["steptrace.analysis"] = package
spec.loader.exec_module(package)

if __name__ == "__main__":
    if sys.argv[1] == "schema":
        from steptrace.document_schemas import schema_of
        print(json.dumps(schema_of(sys.argv[2])))
    elif sys.argv[1] == "key":
        from steptrace.documents.paths import check_key
        check_key(sys.argv[2])
    elif sys.argv[1] == "value":
        import msgspec
        from pathlib import Path
        from steptrace.documents.base import read
        from steptrace.documents.paths import value_at
        from steptrace.documents.summary import Summary
        print(json.dumps(value_at(read(Path(sys.argv[2]), Summary).traces[0], sys.argv[3])))
    else:
        from steptrace import cli
        sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that is steptrace with the subject."""
    folder = tmp_path_factory.mktemp("toy")
    paths = {"documents": folder / "documents", "analysis": folder / "analysis"}
    for name, text in (("documents", ROWS), ("analysis", COMPUTATION)):
        paths[name].mkdir()
        (paths[name] / "toys.py").write_text(text, encoding="utf-8")
    file = folder / "with_toys.py"
    file.write_text(PROGRAM.format(**{name: str(path) for name, path in paths.items()}), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def analysed(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two traces, A and B, and of what was made of them."""
    folder = tmp_path_factory.mktemp("traces")
    for name, ns in (("a", 10_000), ("b", 40_000)):
        builder = TraceBuilder()
        training_step(builder)
        builder.op("aten::zeros", 600_000, ns)
        builder.write(folder / f"{name}.json")
    _run(program, "analyze", folder / "a.json", "--out", folder / "out")
    _run(program, "diff", folder / "a.json", folder / "b.json", "--out", folder / "diff")
    return folder


def _run(program: Path, *arguments: object, optimised: bool = False) -> str:
    options = ["-OO"] if optimised else []
    done = subprocess.run(
        [sys.executable, *options, str(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _rows(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "out" / "summary.json").read_text(encoding="utf-8"))
    return {row["letter"]: row["toy_ns"] for row in summary["traces"][0]["toys"]}


def test_it_is_in_the_summary_and_in_a_table(analysed: Path) -> None:
    assert _rows(analysed)["z"] == 10_000
    table = pd.read_parquet(analysed / "out" / "tables" / "trace0" / "toys.parquet")
    assert dict(zip(table["letter"], table["toy_ns"], strict=True)) == _rows(analysed)


def test_it_is_on_the_page_where_it_says(analysed: Path) -> None:
    page = (analysed / "out" / "report.html").read_text(encoding="utf-8")
    assert page.index('id="idle"') < page.index('id="toys"') < page.index('id="syncs"')
    assert "Toy time" in page


def test_a_page_says_what_its_rows_are_without_docstrings_too(program: Path, analysed: Path, tmp_path: Path) -> None:
    _run(program, "analyze", analysed / "a.json", "--out", tmp_path, optimised=True)
    pages = [(folder / "report.html").read_text(encoding="utf-8") for folder in (analysed / "out", tmp_path)]
    assert pages[0].count("The operators of one letter.") == pages[1].count("The operators of one letter.") == 1
    assert re.findall(r"<dd>[^<]*", pages[0]) == re.findall(r"<dd>[^<]*", pages[1])


def test_a_row_that_nothing_describes_is_refused() -> None:
    class Undescribed(Row, frozen=True):
        name: str

    with pytest.raises(ValueError, match="Undescribed"):
        TableSubject("undescribed", Undescribed, subject("Undescribed", None))


def test_it_is_in_the_diff(analysed: Path) -> None:
    diff = json.loads((analysed / "diff" / "diff.json").read_text(encoding="utf-8"))
    (row,) = diff["tables"]["toys"]
    assert (row["name"], row["figures"]["toy_ns"]) == ("z", {"a": 10_000, "b": 40_000})
    assert 'id="toys"' in (analysed / "diff" / "diff.html").read_text(encoding="utf-8")


def test_it_is_in_the_schemas(program: Path) -> None:
    for name in ("summary", "comparison"):
        definitions = json.loads(_run(program, "schema", name))["$defs"]
        assert definitions["TraceSummary"]["properties"]["toys"]["items"] == {"$ref": "#/$defs/ToyRow"}
        assert "toys" not in definitions["TraceSummary"]["required"]  # files of before can still be read


def test_a_gate_can_name_its_figures(program: Path, analysed: Path) -> None:
    _run(program, "key", "trace.toys.z.toy_ns")
    assert json.loads(_run(program, "value", analysed / "out" / "summary.json", "toys.z.toy_ns")) == 10_000


def test_what_is_attached_to_no_subject_is_refused() -> None:
    with pytest.raises(ValueError, match="toys"):
        registry.table_part("toys")
    with pytest.raises(ValueError, match="toys"):
        registry.part("toys")
    with pytest.raises(ValueError, match="toys"):
        section_of("toys")
    with pytest.raises(ValueError, match="toys"):
        views_of({"toys": PLAIN})


def test_nothing_is_computed_twice() -> None:
    with pytest.raises(ValueError, match="queues"):
        registry.part("queues")
    assert section_for("memory") is not None
    with pytest.raises(ValueError, match="memory"):
        section_of("memory")
