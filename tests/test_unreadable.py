"""Result files that cannot be read: set aside, said, and what makes them again is called for."""

import gzip
import json
import os

import pandas as pd
import pytest
from pyarrow import parquet

from documents import fill, plain
from steptrace.document_schemas import DOCUMENTS
from steptrace.documents.base import File, write
from steptrace.documents.comparison import Comparison
from steptrace.documents.run import RunRecord, Status
from steptrace.record import write_run, write_status
from steptrace.workflow.unreadable import set_aside_unreadable

GARBAGE = b"\x00\xff garbage"


@pytest.fixture
def results(tmp_path):
    """A study's results, all of which can be read."""
    study = tmp_path / "results" / "tiny"
    run = study / "plain" / "run0"
    (run / "tables" / "trace0").mkdir(parents=True)
    status = fill(Status, {"status": "ok", "exit_code": 0})
    for folder in (run, study / "plain" / "equivalence", study / "plain" / "prediction"):
        write_status(folder, status)
    for file in (run / "steps.parquet", run / "tables" / "trace0" / "kernels.parquet"):
        pd.DataFrame({"step": range(9000)}).to_parquet(file)
    (run / "trace.json.gz").write_bytes(gzip.compress(b"{}"))
    write_run(run, fill(RunRecord, {}))
    for name in ("run0/summary.json", "equivalence/equivalence.json", "prediction.json"):
        (study / "plain" / name).write_text("{}")
    (study / "study.json").write_text("{}")
    comparison = plain(fill(Comparison, {"study": "tiny", "scale": "cpu", "variants": []}))
    (study / "comparison.json").write_text(json.dumps(comparison))
    return tmp_path / "results"


def files(results):
    return {
        str(path.relative_to(results)) for path in results.rglob("*") if path.is_file() and ".cache" not in str(path)
    }


def test_what_can_be_read_stays(results):
    before = files(results)
    assert set_aside_unreadable(results.parent) == []
    assert files(results) == before


def test_no_results_are_no_problem(tmp_path):
    assert set_aside_unreadable(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("plain/run0/status.json", []),
        ("plain/run0/run.json", ["plain/run0/status.json"]),
        ("plain/run0/steps.parquet", ["plain/run0/status.json"]),
        ("plain/run0/trace.json.gz", ["plain/run0/status.json"]),
        ("plain/run0/summary.json", []),
        ("plain/run0/tables/trace0/kernels.parquet", ["plain/run0/summary.json"]),
        ("plain/equivalence/equivalence.json", ["plain/equivalence/status.json"]),
        ("plain/prediction.json", ["plain/prediction/status.json"]),
        ("study.json", []),
        ("comparison.json", []),
    ],
)
@pytest.mark.parametrize("damage", ["garbage", "empty", "truncated"])
def test_what_cannot_be_read_is_set_aside_with_what_makes_it_again(results, name, also, damage):
    before = files(results)
    assert set_aside_unreadable(results.parent) == []  # it could be read at the last look
    file = results / "tiny" / name
    whole = file.read_bytes()
    # The end of a trace may be missing: a warning of the run's summary.
    half = whole[: 1 if name.endswith(".gz") else len(whole) // 2]
    damaged = {"garbage": GARBAGE, "empty": b"", "truncated": half}[damage]
    file.write_bytes(damaged)
    (sentence,) = set_aside_unreadable(results.parent)
    assert sentence.startswith(f"results/tiny/{name} cannot be read (")
    assert sentence.endswith(f"set aside as {file.name}.corrupt, to be made again")
    gone = {f"tiny/{gone}" for gone in (name, *also)}
    assert files(results) == before - gone | {f"{path}.corrupt" for path in gone}
    assert file.with_name(f"{file.name}.corrupt").read_bytes() == damaged
    assert set_aside_unreadable(results.parent) == []


@pytest.mark.parametrize("place", ["tiny/plain/run0", "traces/job", "tables/ranks/run0", "traces/tables"])
@pytest.mark.parametrize("name", ["rank.json", "ops.parquet"])
def test_a_rank_is_set_aside_as_a_whole(results, place, name):
    ranks = results / place / "ranks"
    for _ in range(2):  # the second time there is one that was set aside before
        (ranks / "0").mkdir(parents=True)
        (ranks / "0" / "rank.json").write_text("{}")
        pd.DataFrame({"step": range(9)}).to_parquet(ranks / "0" / "ops.parquet")
        (ranks / "0" / ".snakemake_timestamp").touch()
        (ranks / "0" / name).write_bytes(GARBAGE)
        (sentence,) = set_aside_unreadable(results.parent)
        assert sentence.startswith(f"results/{place}/ranks/0/{name} cannot be read (")
        assert sentence.endswith("set aside as 0.corrupt, to be made again")
        assert [folder.name for folder in ranks.iterdir()] == ["0.corrupt"]
        assert len(list((ranks / "0.corrupt").iterdir())) == 3
        assert set_aside_unreadable(results.parent) == []


def test_files_above_the_results_are_left_alone(tmp_path):
    workdir = tmp_path / "tables" / "project"
    run = workdir / "results" / "tables" / "plain" / "run0"
    run.mkdir(parents=True)
    write_status(run, fill(Status, {"status": "ok"}))
    (run / "steps.parquet").write_bytes(GARBAGE)
    for others in (tmp_path, workdir / "results"):
        (others / "summary.json").write_text("{}")
    assert len(set_aside_unreadable(workdir)) == 1
    assert {file.name for file in run.iterdir()} == {"steps.parquet.corrupt", "status.json.corrupt"}
    assert all((others / "summary.json").exists() for others in (tmp_path, workdir / "results"))


def test_a_page_of_a_table_that_is_damaged_is_found(results):
    file = results / "tiny/plain/run0/steps.parquet"
    content = bytearray(file.read_bytes())
    content[40:3000] = os.urandom(2960)
    file.write_bytes(content)
    assert len(set_aside_unreadable(results.parent)) == 1


@pytest.mark.parametrize("text", ["{}", '{"status": 3}', "[]"])
def test_json_that_is_no_status_cannot_be_read(results, text):
    (results / "tiny/plain/run0/status.json").write_text(text)
    assert len(set_aside_unreadable(results.parent)) == 1


@pytest.mark.parametrize("name", ["plain/run0/run.json", "plain/run0/status.json"])
def test_a_file_of_a_later_version_is_made_again(results, name):
    file = results / "tiny" / name
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema_version": 99}))
    (sentence,) = set_aside_unreadable(results.parent)
    assert "is of version 99, and this steptrace reads version 1" in sentence


def test_a_document_may_have_a_later_version_than_the_others(results, monkeypatch):
    class Later(File, frozen=True, kw_only=True):
        schema_version: int = 3

    monkeypatch.setitem(DOCUMENTS, "summary", Later)
    write(results / "tiny/plain/run0/summary.json", Later())
    assert set_aside_unreadable(results.parent) == []


def test_a_table_of_a_later_version_is_made_again(results):
    file = results / "tiny/plain/run0/steps.parquet"
    table = parquet.read_table(file)
    parquet.write_table(table.replace_schema_metadata({"steptrace.schema_version": "2"}), file)
    (sentence,) = set_aside_unreadable(results.parent)
    assert "is of version 2, and this steptrace reads version 1" in sentence


def test_a_fifo_is_not_opened(results):
    file = results / "tiny/plain/run0/summary.json"
    file.unlink()
    os.mkfifo(file)
    (sentence,) = set_aside_unreadable(results.parent)
    assert "no regular file" in sentence
    assert not file.exists()


def test_a_cache_that_cannot_be_read_is_made_again(results):
    set_aside_unreadable(results.parent)
    cache = results / ".cache/readable.json"
    known = cache.read_bytes()
    cache.write_bytes(GARBAGE)
    assert set_aside_unreadable(results.parent) == []
    assert cache.read_bytes() == known
