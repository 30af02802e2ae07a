"""What torchrun's output says of the rank that failed."""

import os
import subprocess
import sys

import pytest

from steptrace.train.endings import classify, last_lines
from steptrace.train.torchrun import first_failure, launcher

OWN = "E1121 10:07:19.816000 21575 site-packages/torch/distributed/elastic/multiprocessing/api.py:1002] failed"


def summary(exit_code, *told, rank=1):
    """The end of torchrun's output, as release 2.13 writes it; rank 0 lost its connection."""
    return [
        OWN,
        "Traceback (most recent call last):",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "============================================================",
        "steptrace.train.main FAILED",
        "Failures:",
        "[1]:",
        "  rank      : 0 (local_rank: 0)",
        "  exitcode  : -15 (pid: 21580)  (SIGTERM)",
        "  traceback : Traceback (most recent call last):",
        "    RuntimeError: Connection closed by peer",
        "------------------------------------------------------------",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-21_10:07:18",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {exit_code} (pid: 21581) ",
        "  error_file: /tmp/error.json",
        *told,
        "============================================================",
    ]


TRACEBACK = (
    "  traceback : Traceback (most recent call last):",
    '    File "/src/model.py", line 11, in forward',
    '      raise ValueError("rank went wrong")',
    "  ValueError: rank went wrong",
    "  ",
)
LOST = (
    "  traceback : Traceback (most recent call last):",
    "  RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:60642. Check the logs.",
)
NONE = ("  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",)


def test_one_process_needs_no_launcher_and_more_use_the_loopback_alone():
    assert launcher(1) == ""
    assert launcher(3).split()[:2] == ["-m", "torch.distributed.run"]
    assert launcher(3).endswith("--standalone --local-addr 127.0.0.1 --nproc-per-node 3")


def test_the_root_cause_s_traceback_is_the_error():
    lines = ["[rank0]: RuntimeError: Connection closed by peer", *summary(1, *TRACEBACK)]
    failure = first_failure(lines)
    assert (failure.rank, failure.exit_code) == (1, 1)
    assert failure.lines[0] == "Traceback (most recent call last):"
    assert failure.lines[-1] == "ValueError: rank went wrong"
    ending = classify(1, lines)
    assert (ending.status, ending.exit_code, ending.error) == ("failed", 1, "rank 1: ValueError: rank went wrong")


def test_a_killed_rank_is_told_from_one_that_lost_its_connection():
    lines = ["[rank0]: RuntimeError: Connection closed", *summary(-9, "  traceback : Signal 9 (SIGKILL) received")]
    ending = classify(1, lines)
    assert (ending.status, ending.signal, ending.error) == ("killed", 9, "rank 1: ended by SIGKILL")


@pytest.mark.parametrize(
    ("exit_code", "told", "error"),
    [
        (1, TRACEBACK, "rank 1: ValueError: rank went wrong"),
        (-9, ("  traceback : Signal 9 (SIGKILL) received",), "rank 1: ended by SIGKILL"),
        (-15, ("  traceback : Signal 15 (SIGTERM) received",), "rank 0: RuntimeError: ["),
    ],
)
def test_a_root_cause_that_lost_its_connection_gives_way_to_a_failure_of_the_same_second(exit_code, told, error):
    whole = summary(1, *LOST, rank=0)
    at = whole.index("[1]:")
    other = ["[1]:", "  rank      : 1 (local_rank: 1)", f"  exitcode  : {exit_code} (pid: 21580)", *told]
    lines = [*whole[:at], *other, *whole[at + 5 :]]
    assert classify(1, lines).error.startswith(error)
    if told == TRACEBACK:
        assert last_lines(lines)[-1] == "ValueError: rank went wrong"


def test_a_rank_killed_by_the_kernel_is_out_of_memory():
    ending = classify(1, summary(-9, "  traceback : Signal 9 (SIGKILL) received"), kernel_killed=True)
    assert (ending.status, ending.error) == ("oom", "rank 1: killed by the kernel for lack of memory")


def test_a_message_without_traceback_is_taken_from_the_rank_s_own_output():
    lines = ["warmup 2/2", "error: rank 1 has no GPU", *summary(2, *NONE)]
    ending = classify(1, lines)
    assert (ending.exit_code, ending.error) == (2, "rank 1: rank 1 has no GPU")


def test_a_rank_that_says_nothing_has_its_exit_code():
    lines = ["warmup 2/2", "[rank0]: RuntimeError: Connection closed by peer", *summary(7, *NONE)]
    assert classify(1, lines).error == "rank 1: exit code 7"


@pytest.mark.parametrize("lines", [[], ["ValueError: x"], summary(1, *TRACEBACK)[:13]])
def test_other_output_names_no_rank(lines):
    assert first_failure(lines) is None


def test_without_a_summary_the_ranks_own_tracebacks_tell():
    lines = [
        "[rank0]: Traceback (most recent call last):",
        "[rank0]: RuntimeError: Connection closed by peer",
        "[rank1]: Traceback (most recent call last):",
        "[rank1]: ValueError: rank went wrong",
        OWN.replace("failed", "Failed to parse reply file: /tmp/error.json"),
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    ]
    assert classify(1, lines).error == "rank 1: ValueError: rank went wrong"
    assert last_lines(lines) == ["Traceback (most recent call last):", "ValueError: rank went wrong"]
    assert first_failure([line for line in lines if "rank" not in line]) is None


#: Rank 1 fails while rank 0 is about to write down why it does.
CUT_OFF = """
import os, time, torch
torch.distributed.init_process_group("gloo")
if os.environ["RANK"] == "0":
    open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").close()
    torch.distributed.barrier()
    time.sleep(60)
torch.distributed.barrier()
raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")
"""


def test_torchrun_that_fails_over_a_cut_error_file_hides_no_failure(tmp_path):
    program = tmp_path / "cut_off.py"
    program.write_text(CUT_OFF)
    command = [sys.executable, *launcher(2).split(), str(program)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    lines = done.stderr.splitlines()
    assert first_failure(lines) is not None, done.stderr
    ending = classify(done.returncode, lines)
    assert (ending.status, ending.error) == ("oom", "rank 1: torch.OutOfMemoryError: Tried to allocate 2.00 GiB")
