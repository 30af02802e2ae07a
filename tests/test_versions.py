"""Every file says of which version it is; a file of another one is refused with what to do."""

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pandas as pd
import pytest
from pyarrow import parquet

from documents import fill, plain
from steptrace import cli, document_schemas
from steptrace.document_schemas import DOCUMENTS
from steptrace.documents import base
from steptrace.documents.comparison import Comparison
from steptrace.documents.run import Environment
from steptrace.documents.table import read_table, write_table
from steptrace.documents.versions import Shape, kept, problems, shape_of, shapes
from steptrace.errors import ConfigError, RecordError
from steptrace.files import read_versioned, write_versioned
from steptrace.run_folder import read_sources, write_sources


def _write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_document_says_its_version_first_and_is_read_again(tmp_path: Path, name: str) -> None:
    document = fill(DOCUMENTS[name], {})
    content = json.loads(base.write(tmp_path / "file.json", document).read_text())
    assert next(iter(content)) == "schema_version"
    assert content["schema_version"] == base.version_of(DOCUMENTS[name])
    assert base.read(tmp_path / "file.json", DOCUMENTS[name]) == document


def test_a_part_of_documents_may_be_a_file_too(tmp_path: Path) -> None:
    part = fill(Environment, {"host": "a"})
    assert json.loads(base.write(tmp_path / "a.json", part).read_text())["schema_version"] == 1
    assert base.read(tmp_path / "a.json", Environment) == part
    assert base.read(_write(tmp_path / "a.json", plain(part)), Environment) == part
    with pytest.raises(RecordError, match="version 2"):
        base.read(_write(tmp_path / "a.json", plain(part) | {"schema_version": 2}), Environment)


@pytest.mark.parametrize("version", [99, 2, 0, -1, "2", None, 2.5])
def test_another_version_is_refused(tmp_path: Path, version: object) -> None:
    content = plain(fill(Comparison, {})) | {"schema_version": version, "later": {"than": "this"}}
    with pytest.raises(RecordError):
        base.read(_write(tmp_path / "comparison.json", content), Comparison)


def test_another_version_is_one_message_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path / "a.json", {"schema_version": 99})
    assert cli.main(["compare", str(path), str(path)]) == 2
    message = capsys.readouterr().err
    reads = f"this steptrace reads version {base.version_of(Comparison)}"
    assert f"{path}: file has version 99, but {reads}\n  next: update steptrace" in message
    older = _write(tmp_path / "b.json", {"schema_version": 1})
    assert cli.main(["compare", str(older), str(older)]) == 2
    assert "run the study" in capsys.readouterr().err


def test_other_json_files(tmp_path: Path) -> None:
    path = write_versioned(tmp_path / "a.json", {"a": 1})
    assert json.loads(path.read_text()) == {"schema_version": 1, "a": 1}
    assert read_versioned(path) == {"a": 1}
    assert read_versioned(_write(path, {"a": 1})) == {"a": 1}
    for wrong, text in (
        ({"schema_version": 2}, "version 2"),
        ({"schema_version": True}, "version True"),
        ([], "object"),
    ):
        with pytest.raises(RecordError, match=text):
            read_versioned(_write(path, wrong))


def test_sources(tmp_path: Path) -> None:
    path = tmp_path / "sources.json"
    write_sources(tmp_path, {"a.py": "x = 1"})
    assert read_sources(path) == {"a.py": "x = 1"}
    with pytest.raises(RecordError, match="version 3"):
        read_sources(_write(path, {"schema_version": 3, "files": {}}))


def test_tables(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    frame = pd.DataFrame({"step": pd.array([1, None], dtype="Int64")})
    write_table(frame, path)
    table = parquet.read_table(path)
    assert table.schema.metadata[b"steptrace.schema_version"] == b"1"
    pd.testing.assert_frame_equal(read_table(path), frame)
    for version in ("2", "x"):
        metadata = {**table.schema.metadata, b"steptrace.schema_version": version}
        parquet.write_table(table.replace_schema_metadata(metadata), path)
        with pytest.raises(RecordError, match=f"version {version}"):
            read_table(path)


def shapes_of(kind: type[base.Document]) -> dict[str, Shape]:
    return {"file": shape_of(kind)}


class Inner(base.Document, frozen=True):
    count: int


class Before(base.File, frozen=True, kw_only=True):
    """A document, as it was."""

    name: str
    inner: Inner
    kind: Literal["a", "b"] = "a"
    size: int | None = None
    kinds: dict[str, Literal["a", "b"]] = msgspec.field(default_factory=dict)
    rows: tuple[Literal["a", "b"], ...] = ()


def changed(document: str, /, **fields: Any) -> type[base.Document]:
    """`Before` with fields that are added, changed, or (None) removed; each a type, or a type and a default."""
    as_before = {"name": str, "inner": Inner, "kind": (Literal["a", "b"], "a"), "size": (int | None, None)}
    as_before |= {"kinds": (dict[str, Literal["a", "b"]], msgspec.field(default_factory=dict))}
    as_before |= {"rows": (tuple[Literal["a", "b"], ...], ())}
    chosen = {key: value for key, value in (as_before | fields).items() if value is not None}
    defined = [(key, *(value if isinstance(value, tuple) else (value,))) for key, value in chosen.items()]
    named = {"__doc__": document}
    return msgspec.defstruct("Before", defined, bases=(base.File,), frozen=True, kw_only=True, namespace=named)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"added": int}, "Before.added is required"),
        ({"size": int | None}, "Before.size is required"),
        ({"kind": None}, "Before.kind is gone"),
        ({"size": (int, 0)}, "Before.size no longer takes"),
        ({"name": int}, "Before.name no longer takes"),
        ({"kind": (Literal["a"], "a")}, "Before.kind no longer takes"),
        ({"inner": list[Inner]}, "Before.inner no longer takes"),
        ({"kinds": (dict[str, Literal["a"]], msgspec.field(default_factory=dict))}, "Before.kinds no longer takes"),
        ({"rows": (tuple[Literal["b", "c"], ...], ())}, "Before.rows no longer takes"),
    ],
)
def test_a_change_by_which_files_of_the_version_no_longer_fit_is_found(fields: dict[str, Any], what: str) -> None:
    (found,) = problems(shapes_of(Before), shapes_of(changed("after", **fields)))
    assert what in found
    after = changed("after", **fields, schema_version=(int, 2))
    assert problems(shapes_of(Before), shapes_of(after)) == []  # of the next version


def test_a_change_of_what_a_document_holds_is_found() -> None:
    renamed = msgspec.defstruct("Inner", [("count", int), ("added", int)], bases=(base.Document,), frozen=True)
    (found,) = problems(shapes_of(Before), shapes_of(changed("after", inner=renamed)))
    assert "Inner.added is required" in found


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"added": (int, 0)},
        {"size": (int | float | None, None)},
        {"kind": (Literal["a", "b", "c"], "a")},
        {"kind": (str, "a")},
        {"kinds": (dict[str, Literal["a", "b", "c"]], msgspec.field(default_factory=dict))},
        {"rows": (tuple[Literal["a", "b", "c"], ...], ())},
        {"name": str | None},
        {"name": Any},
    ],
)
def test_what_old_files_fit_needs_no_new_version(fields: dict[str, Any]) -> None:
    assert problems(shapes_of(Before), shapes_of(changed("after", **fields))) == []


def test_a_version_does_not_go_back() -> None:
    (found,) = problems(shapes_of(changed("x", schema_version=(int, 3))), shapes_of(Before))
    assert "went back" in found


def test_what_was_added_with_a_default_cannot_become_required_at_the_same_version() -> None:
    optional = shapes_of(changed("with", added=(int, 0)))
    since = kept(shapes_of(Before), optional)
    (found,) = problems(since, shapes_of(changed("required", added=int)))
    assert "Before.added is required" in found
    assert problems(since, optional) == []
    assert kept(since, shapes_of(changed("next", added=int, schema_version=(int, 2))))["file"]["version"] == 2


COMMITTED = Path(__file__).parents[1] / "docs" / "schemas" / "versions.json"


def test_files_of_the_present_versions_can_be_read_whenever_they_were_written() -> None:
    """If this fails: give the new field a default, or the document the next `schema_version`; then make the docs."""
    committed = json.loads(COMMITTED.read_text())
    assert problems(committed, shapes()) == []
    assert kept(committed, shapes()) == committed, "python -m steptrace.document_schemas docs"
    assert {f"{name}.json" for name in DOCUMENTS} | {"tables"} <= {*committed}


def test_docs_of_a_change_that_breaks_the_rule_are_not_written(tmp_path: Path) -> None:
    shape = shapes()
    del shape["summary.json"]["types"]["TraceSummary"]["fields"]["path"]
    shape["summary.json"]["types"]["TraceSummary"]["required"].remove("path")
    (tmp_path / "schemas").mkdir()
    file = _write(tmp_path / "schemas" / "versions.json", shape)
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=r"TraceSummary\.path"):
        document_schemas.write(tmp_path)
    assert file.read_bytes() == before
