"""From exit code, log and the kernel's counters to a status."""

import pytest

from steptrace.train.endings import classify, kernel_oom_kills

TRACEBACK = ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>']


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 9 GiB",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "torch.OutOfMemoryError: HIP out of memory.",
        "torch.AcceleratorError: CUDA error: out of memory",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "Last error: Cuda failure 2 'out of memory'",
        "MemoryError",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: not enough memory: you tried",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_out_of_memory_is_seen_in_the_log(line):
    ending = classify(1, [*TRACEBACK, line])
    assert (ending.status, ending.exit_code) == ("oom", 1)
    assert ending.error is not None
    assert line.startswith(ending.error[:20])


def test_a_run_that_got_over_an_out_of_memory_is_ok():
    assert classify(0, ["caught torch.OutOfMemoryError: CUDA out of memory, halving the batch"]).status == "ok"


def test_sigkill_is_out_of_memory_only_if_the_kernel_says_so():
    assert classify(-9, []).status == "killed"
    ending = classify(-9, [], kernel_killed=True)
    assert (ending.status, ending.signal) == ("oom", 9)
    assert "lack of memory" in (ending.error or "")
    assert classify(-15, [], kernel_killed=True).status == "killed"


def test_a_loader_worker_that_the_kernel_killed_is_out_of_memory():
    log = [*TRACEBACK, "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "]
    assert classify(1, log).status == "failed"
    assert classify(1, log, kernel_killed=True).status == "oom"


def test_the_last_exception_is_the_error():
    log = [*TRACEBACK, "ValueError: first", "During handling ...", *TRACEBACK, "mine.TrainError: second", "bye"]
    assert classify(1, log).error == "mine.TrainError: second"
    assert classify(1, [*TRACEBACK, "AssertionError"]).error == "AssertionError"
    assert classify(2, ["error: config.yaml: is empty", "  next: fill it"]).error == "config.yaml: is empty"
    assert classify(1, []).error == "exit code 1"


def test_a_message_that_announces_its_reason_is_given_with_it():
    announced = "hydra.errors.InstantiationException: Error in call to target 'mine.Loss':"
    log = [*TRACEBACK, announced, """TypeError("got an unexpected keyword argument 'slope'")""", "full_key: loss"]
    assert classify(1, log).error == f"{announced} {log[3]}"
    assert classify(1, [*TRACEBACK, announced]).error == announced


def test_an_endless_message_is_cut():
    ending = classify(1, ["ValueError: " + "x" * 10_000])
    assert ending.error is not None
    assert len(ending.error) == 500


def test_kernel_counters_of_the_control_group_go_before_the_machines(tmp_path):
    assert kernel_oom_kills(tmp_path) == 0
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/vmstat").write_text("nr_free 1\noom_kill 7\n")
    assert kernel_oom_kills(tmp_path) == 7
    (tmp_path / "proc/self/cgroup").write_text("0::/user/me\n")
    assert kernel_oom_kills(tmp_path) == 7
    group = tmp_path / "sys/fs/cgroup/user/me"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert kernel_oom_kills(tmp_path) == 2


def test_an_exception_that_is_not_called_an_error_is_one():
    hint = ["", 'Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace. For more, set TORCH_LOGS="+dynamo"', ""]
    first = [*TRACEBACK, "ImportError: no triton", "", "The above exception was the direct cause of:", ""]
    missing = "torch._inductor.exc.TritonMissing: Cannot find Triton."
    log = [*first, *TRACEBACK, "    raise TritonMissing()", missing, *hint]
    assert classify(1, log).error == missing
