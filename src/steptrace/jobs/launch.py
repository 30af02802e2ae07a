"""Starts a program of the user's in the foreground, with the probe in it, and waits for its end. Imports no torch.

The program keeps its own input, output, working directory and exit code. It is stopped if it runs on long after its
last measured step. All its descendants end with it, also those in other sessions. It has a session of its own, so a
terminal's Ctrl-C reaches it only through this process.
"""

import math
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

import psutil

from steptrace.errors import LaunchError
from steptrace.estimate.driver import USUAL, DriverFacts, driver_facts
from steptrace.estimate.gpus import gpu_named
from steptrace.jobs.process import Process
from steptrace.launch.nvidia_smi import add_nvidia_smi
from steptrace.launch.result import Launched, Stop
from steptrace.launch.settings import LaunchSettings
from steptrace.output_folder import require_empty
from steptrace.processes import Children

_POLL_S: Final = 0.2
#: Seconds that a program gets to end by itself after a signal, unless the signal is Ctrl-C's.
_INTERRUPT_S: Final = 10.0
#: The command that runs a file that is not executable, by the file's suffix.
_STARTERS: Final = {".py": "python", ".ipynb": "jupyter execute"}


def launch(
    command: Sequence[str],
    settings: LaunchSettings,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    output: TextIO | None = None,
    status: Callable[[str], object] = lambda _: None,
) -> Launched:
    """Run a command with the probe in it; return how it ended and what its processes left.

    Args:
        command: the program and its arguments.
        settings: the probe's settings; their folder `out` must be new or empty.
        cwd: its working directory; default: this process's.
        env: more environment variables.
        output: its standard output; default: this process's.
        status: gets each line on the program's progress.

    Raises:
        LaunchError: the command cannot be started.
        SteptraceError: the probe's folder is not empty.
    """
    out = Path(settings.out)
    require_empty(out)
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **(env or {})}
    if settings.mode == "predict":
        driver = driver_facts(gpu_named(USUAL)) if settings.driver is None else DriverFacts(**settings.driver)
        add_nvidia_smi(out / "commands", environment, driver, settings.gpus or 1)
    with Children() as children:
        try:
            process = Process(
                children,
                command,
                environment,
                probe=settings,
                limit_s=settings.limit_s,
                show=status,
                last=signal.SIGTERM,
                cwd=cwd,
                stdout=output,
            )
        except OSError as error:
            raise _not_started(command, cwd, error) from error
        child = process.child
        while not process.is_over():
            time.sleep(_POLL_S)
            if children.signals:
                process.stopped = Stop("signal", signal=children.signals[0])
                break
        if child.poll() is None and children.signals:
            _interrupt(child, children.signals)
        elif child.poll() is None and process.is_at_time_limit:
            _interrupt(child, [signal.SIGTERM])
        if child.poll() is not None and settings.mode == "capture":
            children.spare()  # the program has ended without us, and may have left a service running
    return process.launched()


def _not_started(command: Sequence[str], cwd: Path | None, error: OSError) -> LaunchError:
    """The error on a command that cannot be started, with the command that would run its file if there is one."""
    is_file = os.path.isfile(Path(cwd or ".", command[0]))  # noqa: PTH113 - the name may be too long
    starter = _STARTERS.get(Path(command[0]).suffix) if is_file else None
    return LaunchError(
        f"cannot be started ({error.strerror})",
        where=command[0],
        expected="a command that trains with PyTorch, such as: python train.py",
        next_step=starter and f"-- {starter} {shlex.join(command)}",
    )


def _interrupt(child: psutil.Popen, signals: list[int]) -> None:
    """Interrupt the program as Ctrl-C does, so that it can end by itself; its timed steps are kept."""
    os.killpg(child.pid, signal.SIGINT)
    # Whoever pressed Ctrl-C may wait until the program has saved a checkpoint, or press it again.
    ends_at = math.inf if signals[0] == signal.SIGINT else time.monotonic() + _INTERRUPT_S
    while child.poll() is None and len(signals) == 1 and time.monotonic() < ends_at:
        time.sleep(_POLL_S)
