"""The messages that the logger knows by their text are in the installed Snakemake; others are known by their fields."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake
from snakemake_interface_logger_plugins.common import LogEvent

import snakemake_logger_plugin_steptrace
from snakemake_logger_plugin_steptrace import LogHandler
from snakemake_logger_plugin_steptrace.texts import REPEATED, SHOWN

SOURCE = "".join(path.read_text(encoding="utf-8") for path in Path(snakemake.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("text", [*SHOWN, *REPEATED])
def test_a_text_is_one_of_snakemake_s(text: str) -> None:
    assert f'"{text.partition(":")[2].strip() or text}' in SOURCE


def handler() -> LogHandler:
    settings: Any = SimpleNamespace(
        stdout=True, dryrun=False, verbose=False, printshellcmds=False, quiet=set(), nocolor=True
    )
    return LogHandler(settings, None)


def record(level: int, message: str, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("snakemake", level, __file__, 1, message, None, None)
    made.__dict__.update(fields)
    return made


def test_an_error_of_a_job_s_command_is_left_out_and_any_other_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    made = handler()
    error = {"event": LogEvent.ERROR, "exception": "RuleException"}
    made.emit(record(logging.ERROR, "before any job", **error))
    job = {"jobid": 1, "rule_name": "train", "wildcards": {}, "output": ["a"]}
    made.emit(record(logging.INFO, "", event=LogEvent.JOB_INFO, **job))
    made.emit(record(logging.ERROR, "CalledProcessError", **error))
    made.emit(record(logging.ERROR, "of the workflow", event=LogEvent.ERROR, exception="WorkflowError"))
    made.emit(record(logging.ERROR, REPEATED[0]))
    assert capsys.readouterr().out.splitlines() == ["before any job", "of the workflow"]


def test_the_time_left_goes_down_and_a_job_that_nobody_names_ends_a_silence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(snakemake_logger_plugin_steptrace, "time", SimpleNamespace(monotonic=lambda: now))
    made = handler()
    stats = {"train_s_run0": 5, "check_s": 1, "draw_s": 12, "total": 18}
    made.emit(record(logging.INFO, "", event=LogEvent.RUN_INFO, stats=stats))
    trainings = [("train_s_run0", {"study": "s", "variant": name, "repeat": "0"}, 7.0) for name in "abcde"]
    jobs = [*trainings, ("check_s", {"study": "s"}, 9.0), *[("draw_s", {"study": "s"}, 1.0)] * 2]
    for number, (rule, wildcards, takes) in enumerate(jobs):
        job = {"jobid": number, "rule_name": rule, "wildcards": wildcards, "output": []}
        made.emit(record(logging.INFO, "", event=LogEvent.JOB_INFO, **job))
        now += takes
        made.emit(record(logging.INFO, "", event=LogEvent.JOB_FINISHED, job_id=number))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*(f"s/{name}" for name in "abcde"), "check_s"]
    assert [line.partition("about ")[2] for line in lines] == [
        "2 min left)", "1 min 50 s left)", "1 min 40 s left)", "1 min 40 s left)", "1 min 30 s left)",
        "1 min 20 s left)",
    ]  # fmt: skip


def test_of_messages_below_a_warning_only_some_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    made = handler()
    for text in ("Nothing to be done (all files are there).", "Building DAG of jobs..."):
        made.emit(record(logging.INFO, text))
    assert capsys.readouterr().out.splitlines() == ["Nothing to be done (all files are there)."]
