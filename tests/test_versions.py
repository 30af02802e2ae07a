"""Every file says of which version it is; a file of another one is refused with what to do."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyarrow import parquet

from documents import fill, plain
from steptrace import cli
from steptrace.document_schemas import DOCUMENTS
from steptrace.documents import base
from steptrace.documents.comparison import Comparison
from steptrace.documents.run import Environment
from steptrace.documents.table import read_table, write_table
from steptrace.errors import RecordError
from steptrace.files import read_versioned, write_versioned
from steptrace.record import read_sources, write_sources


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
    assert f"{path}: file has version 99, but {reads}\n  next: make the file again" in message


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
    path, frame = tmp_path / "a.parquet", pd.DataFrame({"step": pd.array([1, None], dtype="Int64")})
    write_table(frame, path)
    table = parquet.read_table(path)
    assert table.schema.metadata[b"steptrace.schema_version"] == b"1"
    pd.testing.assert_frame_equal(read_table(path), frame)
    for version in ("2", "x"):
        metadata = {**table.schema.metadata, b"steptrace.schema_version": version}
        parquet.write_table(table.replace_schema_metadata(metadata), path)
        with pytest.raises(RecordError, match=f"version {version}"):
            read_table(path)
