import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from steptrace.trace.link import read_trace
from steptrace.trace.written import export, put_in_place

TRACE = (
    '{"traceEvents": [\n{"ph": "X", "name": "ProfilerStep#3"\n},\n{"name": "Record Window End"\n}], "traceName": "x"\n}'
)


def test_a_whole_trace_is_put_in_place(tmp_path: Path) -> None:
    (tmp_path / "plain.json").write_text(TRACE)
    put_in_place(tmp_path / "plain.json", tmp_path / "trace.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes())) == json.loads(TRACE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain.json", "trace.json.gz"]


def test_the_step_that_a_recording_ended_in_is_marked(tmp_path: Path) -> None:
    (tmp_path / "plain.json").write_text(TRACE)
    put_in_place(tmp_path / "plain.json", tmp_path / "trace.json.gz", unfinished="ProfilerStep#3")
    assert b'"Unfinished step #3"' in gzip.decompress((tmp_path / "trace.json.gz").read_bytes())


@pytest.mark.parametrize("text", [None, "", TRACE[:40], TRACE[:-10], TRACE.partition("]")[0].strip(), "}"])
def test_half_a_trace_is_an_error_and_replaces_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "plain.json").write_text(text)
    (tmp_path / "trace.json.gz").write_bytes(b"before")
    with pytest.raises(OSError, match="only in part"):
        put_in_place(tmp_path / "plain.json", tmp_path / "trace.json.gz")
    assert (tmp_path / "trace.json.gz").read_bytes() == b"before"


def test_half_a_trace_leaves_its_room_to_others(tmp_path: Path) -> None:
    class Profiler:
        """On a disk that is full: what PyTorch has written has not got its name yet."""

        def export_chrome_trace(self, path: str) -> None:
            Path(f"{path}.tmp").write_text(TRACE[:40])

    with pytest.raises(OSError, match="is the disk full"):
        export(Profiler(), tmp_path / "trace.json.gz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["""it's a "q" \\t back\\slash""", "two\nlines", '}]"', "Zoë"])
def test_a_trace_is_written_in_a_folder_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """PyTorch renames its file to one without backslashes, and does not escape quotation marks."""
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    source = folder / "model.py"
    source.write_text("def step(x):\n    return x @ x\n")
    names: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), names)
    with torch.profiler.profile(with_stack=True) as profiler:
        names["step"](torch.ones(3, 3))
    export(profiler, folder / "trace.json.gz")
    with gzip.open(folder / "trace.json.gz") as file:
        assert json.loads(file.read())["traceEvents"]
    assert {file.name for file in folder.iterdir()} == {"model.py", "trace.json.gz"}
    assert "aten::mm" in set(read_trace(folder / "trace.json.gz").ops["name"].astype(str))
