"""Commands that write a folder: what they did not write themselves is neither removed nor replaced nor followed."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from builders import TraceBuilder, training_step
from documents import fill
from steptrace.cli import main
from steptrace.documents.base import write
from steptrace.documents.comparison import Comparison
from steptrace.errors import SteptraceError
from steptrace.launch.capture import ListeningProcess, start_of
from steptrace.output_folder import LIST_FILE, OutputFolder, folder_named_after, require_empty, require_free

#: A project of somebody's, with files and folders of the names that commands write.
FOREIGN = {
    ".git/config": "[core]",
    "src/main.py": "print()",
    "probe/data.bin": "probe",
    "run0/run.json": "{}",
    "run0/trace.json.gz": "a trace",
    "tables/trace0/ops.parquet": "a table",
    "counters/notes.txt": "counts",
    "summary.json": "{}",
    "report.html": "<html>",
    "diff.json": "{}",
    "diff.html": "<html>",
    "compare.json": "{}",
    "compare.md": "# mine",
    "compare.html": "<html>",
    "capture.json": "{}",
    "Snakefile": "rule all:",
    "config/workflow.yaml": "studies: []",
}
#: Each command, and the arguments before its folder.
COMMANDS = ("run", "run --capture", "analyze", "diff", "compare", "capture", "init")
#: These make folders of their own in it, and write nothing to it.
ONLY_ADDS = ("run --capture",)


def content(folder: Path) -> Mapping[str, bytes | str]:
    """Everything in a folder: what links point to, and the bytes of files."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path], int]:
    """Call a command with a folder to write to; returns its exit code."""
    builder = TraceBuilder()
    training_step(builder, 0, 0)
    trace = builder.write(tmp_path / "in" / "trace.json")
    result = tmp_path / "in" / "comparison.json"
    runs = [{"repeat": k, "status": "ok", "median_ms": 10.0} for k in range(3)]
    variant = {"name": "v", "status": "ok", "digest": "d", "baseline": "v", "runs": runs}
    write(result, fill(Comparison, {"study": "s", "title": "S", "scale": "cpu", "variants": [variant]}))
    process = ListeningProcess(os.getpid(), start_of(os.getpid()) or "", "train.py", 0.0, str(tmp_path / "captures"))
    monkeypatch.setattr("steptrace.commands.capture.find", lambda _: process)
    monkeypatch.setattr("steptrace.commands.capture.wait", lambda *_: ("recorded", ""))
    monkeypatch.setattr(ListeningProcess, "post", lambda *_: None)
    program = ["--", sys.executable, "-c", "pass"]
    before = {
        "analyze": ["analyze", str(trace), "--counters", "--out"],
        "diff": ["diff", str(trace), str(trace), "--out"],
        "compare": ["compare", str(result), str(result), "--out"],
        "capture": ["capture", "1", "--out"],
        "init": ["init"],
        "run": ["run", "--no-predict", "--out"],
        "run --capture": ["run", "--capture", "--out"],
    }

    def called(command: str, out: Path) -> int:
        return main([*before[command], str(out), *(program if command.startswith("run") else ())])

    return called


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_full_of_other_things(
    tmp_path: Path, call: Callable[[str, Path], int], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "project"
    for name, text in FOREIGN.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
    before = content(out)
    code = call(command, out)
    assert content(out) == before
    if command not in ONLY_ADDS:
        assert code == 2
        assert any(f"{out / path}" in capsys.readouterr().err for path in ("", *FOREIGN))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["inside", "itself"])
def test_a_symlink_is_not_followed(
    tmp_path: Path,
    call: Callable[[str, Path], int],
    command: str,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    precious = tmp_path / "precious"
    out = tmp_path / "out"
    precious.mkdir()
    if kind == "itself":
        out.symlink_to(precious)
    else:
        (precious / "file").write_text("mine")
        out.mkdir()
        for name in ("run0", "tables", "counters", "config", "plugins", "profiles"):
            (out / name).symlink_to(precious)
        for name in ("summary.json", "report.html", "diff.json", "compare.html", "capture.json", "train.py"):
            (out / name).symlink_to(precious / "file")
    before = content(precious), content(out)
    code = call(command, out)
    assert (content(precious), content(out)) == before
    if kind == "itself" or command not in ONLY_ADDS:
        assert code == 2
        assert str(out) in capsys.readouterr().err


@pytest.mark.parametrize("command", ["analyze", "diff", "compare"])
def test_what_a_command_wrote_is_replaced_and_nothing_more(
    tmp_path: Path, call: Callable[[str, Path], int], command: str
) -> None:
    out = tmp_path / "out"
    assert call(command, out) == 0
    written = set(content(out))
    (out / "notes.txt").write_text("mine")
    (out / "tables").mkdir(exist_ok=True)
    (out / "tables" / "notes.txt").write_text("mine, too")
    assert call(command, out) == 0
    assert set(content(out)) == written | {"notes.txt", "tables/notes.txt"}
    assert (out / "tables" / "notes.txt").read_text() == "mine, too"


def test_a_list_that_leads_out_of_its_folder_or_is_no_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    for names in (["../precious"], [str(tmp_path / "precious")], ["a/../../precious"], [1], "precious", [""]):
        (out / LIST_FILE).write_text(json.dumps({"schema_version": 1, "files": names, "unfinished": []}))
        with pytest.raises(SteptraceError) as caught, OutputFolder(out, ["summary.json"], by="test"):
            pass
        assert str(out / LIST_FILE) in str(caught.value)
    assert (tmp_path / "precious").read_text() == "mine"


def test_what_a_killed_call_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = (
        "import os, sys; from pathlib import Path; from steptrace.output_folder import OutputFolder\n"
        "with OutputFolder(Path(sys.argv[1]), ['x'], by='test') as folder, folder.scratch() as scratch:\n"
        "    (scratch / 'half').write_text('half')\n"
        "    os._exit(9)\n"
    )
    os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", script, str(out)])
    assert [name for name in content(out) if name.endswith("half")]
    with OutputFolder(out, ["x"], by="test"):
        pass
    assert content(out) == {}


def test_a_file_that_comes_in_the_way_meanwhile_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with OutputFolder(out, ["tables/"], by="test") as folder, folder.scratch() as scratch:
        (scratch / "a").write_text("new")
        (out / "tables").mkdir()
        (out / "tables" / "a").write_text("mine")
        with pytest.raises(SteptraceError, match="tables"):
            folder.put(scratch, "tables")
    assert content(out) == {"tables/a": b"mine"}


def test_a_folder_that_was_made_for_nothing_is_gone(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "a" / "b", ["x"], by="test")
    with pytest.raises(ZeroDivisionError), folder, folder.scratch():
        raise ZeroDivisionError
    assert not (tmp_path / "a").exists()


def test_a_new_or_empty_folder_and_free_names(tmp_path: Path) -> None:
    require_empty(tmp_path / "new")
    require_empty(tmp_path)
    (tmp_path / "file").write_text("")
    for refused in (tmp_path, tmp_path / "file"):
        with pytest.raises(SteptraceError, match="file"):
            require_empty(refused)
    require_free(tmp_path, ["other"])
    for names in (["file"], ["file/below"]):
        with pytest.raises(SteptraceError, match="file"):
            require_free(tmp_path, names)


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (["/data/vit.json.gz"], "vit-analysis"),
        (["host.12.pt.trace.json"], "host.12-analysis"),
        (["snap.pickle"], "snap-analysis"),
        (["a.json", "b/a.json"], "a-analysis"),
        (["before.json", "after.json"], "before-after-analysis"),
        (["r0.json", "r1.json", "r2.json"], "r0-and-more-analysis"),
        (["/"], "analysis"),
    ],
)
def test_a_result_s_folder_has_the_name_of_what_was_read(inputs: list[str], name: str) -> None:
    assert folder_named_after(inputs, "analysis") == Path(name)


def test_a_result_s_folder_has_a_name_that_a_file_system_takes() -> None:
    assert len(os.fsencode(folder_named_after(["\N{EARTH GLOBE EUROPE-AFRICA}" * 300], "analysis").name)) <= 255


def test_without_out_a_trace_is_analysed_and_compared_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    for name in ("a.json", "b.json"):
        builder = TraceBuilder()
        training_step(builder)
        builder.write(traces / name)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert main(["analyze", "../traces/a.json", "--no-report"]) == 0
    assert str(Path("a-analysis", "summary.json")) in capsys.readouterr().out
    assert main(["diff", "../traces/a.json", "../traces/b.json"]) == 0
    assert str(Path("a-b-diff", "diff.html")) in capsys.readouterr().out
    assert sorted(path.name for path in here.iterdir()) == ["a-analysis", "a-b-diff"]
    assert sorted(path.name for path in traces.iterdir()) == ["a.json", "b.json"]
