"""Sentences are made of facts, and no fact of a sentence: with every sentence replaced by "x" all else stays.

That is all JSON, the rows of all tables, the exit codes, what a page's first screen shows, and what stands first.
"""

import dataclasses
import json
import pickle
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pandas as pd
import pytest
import torch

from analysis.test_compilations import COMPILED, summary_beside
from builders import TraceBuilder, training_step
from commands.test_compare_command import study as compared_study
from commands.test_compare_command import variant
from compare.conftest import StudyFolder
from diff import test_diff_runs as of_runs
from diff.test_diff_runs import make_run
from documents import compare, fill
from estimate.test_estimate import CUSTOM, UNCOVERED, add, call, estimate, tensor
from findings.fixtures import host_bound, sync_bound
from findings.jobs import MS, job
from snapshot.test_snapshot import training
from steptrace.cli import main
from steptrace.commands import predict, run
from steptrace.compare.gates import ending, judge
from steptrace.documents.base import Document, write
from steptrace.documents.probe import StepOutputs
from steptrace.equivalence.programs import verdict_on_programs
from steptrace.exit_codes import ExitCode
from steptrace.findings import with_findings
from steptrace.findings.recommended import first_steps
from steptrace.launch.result import Launched
from steptrace.predict import predict_syncs
from steptrace.predict.prediction import predicted
from steptrace.report.study.first_screen import _no_verdict
from steptrace.report.study.variants import care, load_study
from steptrace.run_folder import write_document
from steptrace.words.estimate import with_reasons
from words.silent import makers, replacement_of, silence

#: The keys that hold sentences.
SENTENCES: Final = frozenset(
    [
        "says",
        "warnings",
        "uneven",
        "claim",
        "evidence",
        "advice",
        "advice_parts",
        "counter_check",
        "text",
        "correction",
        "notes",
        "cause",
    ]
)


#: By a key that holds a fact, the keys beside it that say the same in words.
WORDS_BESIDE: Final = {
    "not_comparable": {"reason"},
    "before_value": {"before", "now", "name"},
    "bandwidth_pct": {"reason"},  # an operator without an estimate, or with an assumed one
    "without_time": {"reason"},  # an estimate
}


def facts(value: Any) -> Any:
    """JSON data without its sentences. `notes` and `cause` can also be codes, which are facts."""
    if isinstance(value, dict):
        sentences = SENTENCES.union(*(words for key, words in WORDS_BESIDE.items() if key in value))
        return {key: facts(item) for key, item in value.items() if key not in sentences or not _is_text(key, item)}
    return [facts(item) for item in value] if isinstance(value, list) else value


def _is_text(key: str, value: Any) -> bool:
    texts = value if isinstance(value, list) else [value]
    if key == "cause":
        return isinstance(value, str) and " " in value + " " and (value == "x" or value.endswith("."))
    return all(isinstance(text, str) for text in texts)


def plain(document: Document) -> Any:
    return json.loads(msgspec.json.encode(document))


def a_trace(folder: Path, *, slow: bool = False) -> Path:
    """A trace whose checks warn and whose steps sync, whose kernels of the second step are missing."""
    builder = TraceBuilder()
    for index in range(3):
        training_step(builder, index, index * 1_100_000, sync=index != 1 or slow)
    builder.step(5, 3_300_000, 1_000)
    return builder.write(folder / f"trace{slow:d}.json")


def analysed(folder: Path) -> dict[str, Any]:
    """Exit code, JSON without sentences, and tables of `steptrace analyze`; and the same of `diff`."""
    traces = [a_trace(folder, slow=slow) for slow in (False, True)]
    codes = [main(["analyze", str(traces[0]), "--no-report", "--out", str(folder / "out")])]
    codes.append(main(["analyze", str(folder / "missing.json"), "--out", str(folder / "none")]))
    codes.append(main(["diff", *map(str, traces), "--out", str(folder / "diff")]))
    tables = {
        path.name: pd.read_parquet(path).drop(columns=["says"], errors="ignore").to_dict("list")
        for path in sorted((folder / "out").rglob("*.parquet"))
    }
    files = {path.name: facts(json.loads(path.read_text())) for path in sorted(folder.rglob("*.json"))}
    return {"codes": codes, "tables": json.loads(json.dumps(tables, default=str)), "files": files}


def test_what_analyze_and_diff_say_is_the_same_without_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = analysed(tmp_path)
    assert silence(monkeypatch) > 30
    assert analysed(tmp_path) == before
    assert before["codes"] == [0, 2, 0]
    assert len(before["tables"]) > 20
    whole = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {check["says"] for check in whole["traces"][0]["quality"]["checks"]} == {"x"}
    assert {item["claim"] for item in whole["traces"][0]["findings"]} == {"x"}
    assert json.loads((tmp_path / "diff" / "diff.json").read_text())["cause"] == "x"


def test_what_ranks_say_together_is_the_same_without_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = [[1 * MS, 6 * MS]] * 4
    job(tmp_path / "ranks", late)

    def analysed_ranks() -> Any:
        assert main(["analyze", str(tmp_path / "ranks"), "--out", str(tmp_path / "out")]) == 0
        return json.loads((tmp_path / "out" / "summary.json").read_text())

    before = analysed_ranks()
    silence(monkeypatch)
    after = analysed_ranks()
    assert facts(after) == facts(before)
    assert [item["rule"] for item in before["ranks"]["findings"]][:1] == ["straggler"]
    assert {item["claim"] for item in after["ranks"]["findings"]} == {"x"}


def test_what_compare_says_is_the_same_without_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = compared_study(variant("quick", 10), variant("slow", 10), variant("once", 10, (1.0,)))
    second = compared_study(variant("quick", 5), variant("slow", 12), variant("once", 5, (1.0,)), scale="gpu")
    files = [tmp_path / name for name in ("first.json", "second.json")]
    for file, result in zip(files, (first, second), strict=True):
        write(file, result)

    def compared() -> tuple[int, Any, Any]:
        code = main(["compare", "--json", *map(str, files), "--out", str(tmp_path / "out")])
        written = json.loads((tmp_path / "out" / "compare.json").read_text())
        return code, json.loads(capsys.readouterr().out), written

    code, printed, written = compared()
    silence(monkeypatch)
    silent_code, silent_printed, silent_written = compared()
    assert silent_code == code
    assert facts(silent_printed) == facts(printed)
    assert facts(silent_written) == facts(written)
    assert silent_written != written


#: A program with a sync in every step.
PROGRAM: Final = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    loss = model(torch.ones(2, 4, device=device)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
"""


@pytest.mark.usefixtures("forked_programs")
def test_what_predict_says_is_the_same_without_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    # The program is followed once: sentences are replaced only in what this process says of it.
    followed = list[predict.FollowedProgram]()

    def follow_once(*arguments: Any, **options: Any) -> predict.FollowedProgram:
        if not followed:
            followed.append(follow_command(*arguments, **options))
        return followed[0]

    follow_command = predict.follow_command
    monkeypatch.setattr(predict, "follow_command", follow_once)

    def answered() -> tuple[int, Any]:
        options = ["--gpu", "H100", "--budget", "0", "--steps", "4", "--warmup", "3"]
        code = main(["predict", "--json", *options, "--", sys.executable, "train.py"])
        said = capfd.readouterr()
        assert said.out, f"exit code {code}, no answer; the program, and steptrace, said:\n{said.err}"
        return code, json.loads(said.out)

    code, before = answered()
    silence(monkeypatch)
    silent_code, after = answered()
    assert silent_code == code == ExitCode.NOT_HELD
    assert facts(after) == facts(before)
    assert before["total"] == 1


@pytest.mark.parametrize("operators", ["none", "copy", "covered", "uncovered", "custom", "compiled"])
def test_an_estimate_s_facts_are_the_same_without_sentences(monkeypatch: pytest.MonkeyPatch, operators: str) -> None:
    copy = call("aten._to_copy.default", [], [tensor(10**7)], host=tensor(10**7))
    calls = {"none": [], "copy": [copy], "covered": [copy, add(10**7)], "uncovered": [UNCOVERED], "custom": [CUSTOM]}
    compiled = [("train.py", 3)] if operators == "compiled" else []

    def estimated() -> Any:
        found = estimate(calls.get(operators, [add(10**7)]), "H100", compiled=compiled)
        assert (found.reason, {row.reason for row in (*found.not_estimated, *found.assumed)} - {""}) == (None, set())
        return json.loads(msgspec.json.encode(with_reasons(found)))

    before = estimated()
    silence(monkeypatch)
    after = estimated()
    assert facts(after) == facts(before)
    assert (before["step_ms"] is None) == (before["without_time"] is not None)
    reasons = {after["reason"], *(row["reason"] for row in (*after["not_estimated"], *after["assumed"]))}
    assert reasons - {None} == ({"x"} if operators != "covered" or before["assumed"] else set())


def test_what_was_compiled_is_the_same_without_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary_beside(tmp_path / "run", {"compiled": dataclasses.asdict(COMPILED)})

    def analysed_trace() -> Any:
        trace = str(tmp_path / "run" / "trace.json.gz")
        assert main(["analyze", trace, "--no-report", "--out", str(tmp_path / "out")]) == 0
        return json.loads((tmp_path / "out" / "summary.json").read_text())

    before = analysed_trace()
    silence(monkeypatch)
    after = analysed_trace()
    assert facts(after) == facts(before)
    assert after != before
    assert {"graph_breaks", "recompilations"} <= {item["rule"] for item in before["traces"][0]["findings"]}


def test_what_a_program_would_compile_is_the_same_without_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    def followed() -> Any:
        with predict_syncs(follow_compiled=True) as syncs:
            breaks = torch.compile(lambda x: x * x.sum().item())
            breaks(torch.ones(4, device="cuda"))
        prediction = json.loads(msgspec.json.encode(predicted(syncs)))
        for code in prediction["followed"]["compiled"]["codes"]:
            del code["seconds"]
        return prediction

    before = followed()
    silence(monkeypatch)
    assert facts(followed()) == facts(before)
    (code,) = before["followed"]["compiled"]["codes"]
    assert code["breaks"]


def test_what_a_diff_of_runs_says_is_the_same_without_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [make_run(tmp_path / name, [10, 11]) for name in ("before", "after")]
    write_document(folders[0], of_runs.prediction(of_runs.site(7, [1, 1])))
    # No rule covers its work, so its estimate has a reason in the place of a step time.
    large = {"shape": [16384, 16384], "strides": [16384, 1], "dtype": "float32"}
    uncovered = {**of_runs.PRODUCT, "name": UNCOVERED.name, "inputs": [large], "outputs": [large], "flop": 0}
    followed = {"steps": 4, "operator_calls": [uncovered], "queue": [0, 0, 0, 0]}
    write_document(folders[1], of_runs.prediction(of_runs.site(7, [1, 0]), followed=followed))

    def compared() -> Any:
        assert main(["diff", *map(str, folders), "--gpu", "H100", "--out", str(tmp_path / "out")]) == 0
        return json.loads((tmp_path / "out" / "diff.json").read_text())

    before = compared()
    silence(monkeypatch)
    after = compared()
    assert facts(after) == facts(before)
    (estimated,) = after["measured"]["b"]["estimates"]
    assert (estimated["without_time"], estimated["reason"]) == ("too_little_covered", "x")


def test_snapshots_of_memory_are_the_same_without_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "first.pickle", tmp_path / "last.pickle"]
    for file, content in zip(files, (training(), {**training(), "segments": []}), strict=True):
        file.write_bytes(pickle.dumps(content, protocol=4))
    out = tmp_path / "out"

    def written() -> Any:
        codes = [
            main(["analyze", str(files[0]), "--out", str(out)]),
            main(["diff", *map(str, files), "--out", str(out)]),
        ]
        pages = [path.read_text(encoding="utf-8").count("<tr") for path in sorted(out.glob("*.html"))]
        return codes, {path.name: facts(json.loads(path.read_text())) for path in sorted(out.glob("*.json"))}, pages

    before = written()
    silence(monkeypatch)
    assert written() == before
    assert before[0] == [0, 0]


@pytest.mark.usefixtures("forked_programs")
def test_what_run_says_is_the_same_without_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    measured = list[Launched]()

    def launch_once(command: Any, settings: Any, **options: Any) -> Launched:
        """The program is measured once: sentences are replaced only in what this process says of it."""
        if not measured:
            measured.append(launch(command, settings, **options))
            shutil.copytree(settings.out, tmp_path / "measured")
        else:
            shutil.copytree(tmp_path / "measured", settings.out, dirs_exist_ok=True)
        (rank,) = measured[0].ranks
        assert rank.trace is not None
        trace = msgspec.structs.replace(rank.trace, file=Path(rank.trace.file).name)
        ranks = (msgspec.structs.replace(rank, trace=trace),)
        return dataclasses.replace(measured[0], out=Path(settings.out), ranks=ranks)

    launch = run.launch
    monkeypatch.setattr(run, "launch", launch_once)

    def ran() -> tuple[int, Any, Any]:
        options = ["--steps", "4", "--warmup", "2", "--profile", "2", "--no-predict", "--out", "out"]
        code = main(["run", "--json", *options, "--", sys.executable, "train.py"])
        answer = json.loads(capfd.readouterr().out)
        files = [Path(answer["run"]), *Path("out").glob("*.json")]
        return code, facts(answer), {file.name: facts(json.loads(file.read_text())) for file in files}

    before = ran()
    silence(monkeypatch)
    assert ran() == before
    assert before[0] == 0
    assert {"run.json", "summary.json"} <= set(before[2])


@pytest.mark.parametrize("samples", [8, 16])
def test_whether_two_programs_compute_the_same_does_not_depend_on_sentences(
    monkeypatch: pytest.MonkeyPatch, samples: int
) -> None:
    def verdict() -> Any:
        steps = {"formats": ["float32"], "depth": 4, "terms": 64, "gradients": [], "loss": 1.0}
        variant_steps = [fill(StepOutputs, {**steps, "samples": samples})]
        return plain(verdict_on_programs(variant_steps, [fill(StepOutputs, {**steps, "samples": 8})]))

    before = verdict()
    silence(monkeypatch)
    after = verdict()
    assert facts(after) == facts(before)
    assert (before["status"] == "same") == (samples == 8)
    assert after["reason"] in (None, "x")


@pytest.fixture
def study(tmp_path: Path) -> StudyFolder:
    made = StudyFolder(tmp_path)
    made.make_study([{"name": "base"}, {"name": "other"}, {"name": "failed"}], repeats=2)
    for repeat in range(2):
        made.add_run("base", repeat, [20.0] * 20)
    made.add_run("other", 0, [10.0] * 20)
    return made


#: A gate that holds, one that is broken, one that is skipped, and one that cannot be checked.
GATES: Final = {
    "study": {
        "base": {"step_ms.median": {"at_most": 100}, "syncs.per_step": {"at_most": 0}},
        "other": {"step_ms.median": {"at_least": 100, "scale": "gpu"}, "no.such.key": {"at_most": 1}},
    }
}


def told(study: StudyFolder) -> dict[str, Any]:
    """All that a comparison says without sentences: JSON, what stands first, gates, and the status."""
    found: Any = json.loads(json.dumps(compare(study.path)))
    file = study.path / "comparison.json"
    file.write_text(json.dumps(found))
    whole = with_findings(load_study(file))
    verdict = judge([whole], {whole.study: GATES["study"]})
    return {
        "json": facts(plain(whole)),
        "verdict": facts(plain(verdict)),
        "status": verdict.status,
        "says_more": ending(verdict, study.path) is not None,
        "care": bool(care(whole)),  # the same sentence stands there once
        "no_verdict": len(_no_verdict(whole)),
        "first": [(item.rule, item.variant, item.severity) for item in first_steps(whole)],
    }


def test_a_study_s_facts_and_what_its_page_shows_are_the_same_without_sentences(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = told(study)
    silence(monkeypatch)
    assert told(study) == before
    assert before["no_verdict"] == 1
    assert before["status"] == "fail"
    outcomes = [gate["outcome"] for gate in before["verdict"]["gates"]]
    assert outcomes == ["held", "broken", "skipped", "broken"]
    assert all(gate["reasons"] or gate["outcome"] == "held" for gate in before["verdict"]["gates"])
    assert before["first"]


@pytest.mark.parametrize("trace", [sync_bound.reads_a_value, host_bound.computes_on_the_host])
def test_the_order_of_findings_is_the_same_without_sentences(
    trace: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from findings.steps import GPU, made
    from steptrace import findings

    entry = made(trace, faulty=True, **GPU).summary()
    before = [item.rule for item in findings.find_in_trace(entry)]
    silence(monkeypatch)
    assert [item.rule for item in findings.find_in_trace(entry)] == before


def test_every_public_function_of_words_is_silenced_or_makes_no_sentence() -> None:
    left = {name for name, function in makers().items() if replacement_of(function) is None}
    # They order, look up, or call functions that are silenced, and return no text of their own.
    assert left == {
        "steptrace.words.codes.words_of_column",
        "steptrace.words.estimate.with_reasons",
        "steptrace.words.lines.rows_shown",
        "steptrace.words.prediction.most_first",
    }


def exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of the job that writes or enforces verdict.json."""
    script = Path(__file__).parents[2] / "workflow" / "scripts" / "verdict.py"
    monkeypatch.setattr(sys, "argv", [script.name, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    return int(ended.value.code or 0)


@pytest.mark.parametrize(("most", "code"), [(1, 1), (100, 0)])
def test_the_workflow_s_exit_code_is_the_same_without_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, code: int
) -> None:
    made = StudyFolder(tmp_path)
    made.make_study([{"name": "base"}], repeats=1)
    made.add_run("base", 0, [20.0] * 20)
    (tmp_path / "comparison.json").write_text(json.dumps(compare(made.path)))
    gates = json.dumps({"s": {"base": {"step_ms.median": {"at_most": most}}}})
    files = str(tmp_path / "comparison.json"), str(tmp_path / "verdict.json")

    def codes() -> list[int]:
        written = exit_code(monkeypatch, "write", files[0], "--gates", gates, "--out", files[1])
        return [written, exit_code(monkeypatch, "enforce", files[1])]

    assert codes() == [0, code]
    silence(monkeypatch)
    assert codes() == [0, code]


def test_pages_have_the_same_rows_without_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = a_trace(tmp_path)

    def rows() -> list[int]:
        assert main(["analyze", str(trace), "--out", str(tmp_path / "out")]) == 0
        page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
        return [page.count(part) for part in ("<tr", "<td", "<section", 'class="finding ')]

    before = rows()
    silence(monkeypatch)
    assert rows() == before
    assert min(before) > 0
