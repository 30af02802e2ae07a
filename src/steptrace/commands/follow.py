"""Follows a program on the virtual GPU, in a process of its own.

This process does not import torch, and the virtual device cannot be unregistered from a process that does.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import msgspec

from steptrace import format as fmt
from steptrace.commands.console import say, warn
from steptrace.documents.prediction import PredictedStep
from steptrace.errors import SteptraceError
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import Gpu
from steptrace.files import scratch_folder
from steptrace.jobs.launch import launch
from steptrace.launch.result import ended, prediction_of, require_steps, why
from steptrace.launch.settings import JUDGED_STEPS, PERIOD_FOLLOWED, PREDICTED_STEPS, LaunchSettings
from steptrace.limits import PERIOD_JUDGED
from steptrace.words.prediction import PLACEHOLDERS

#: Steps of a program that are made before the followed ones.
WARMUP: Final = 2


@dataclass(frozen=True)
class FollowedProgram:
    """A program or variant and its prediction, or the error that prevented it.

    Attributes:
        name: the variant's name, or the command.
        prediction: the prediction; None if the program left none.
        error: why there is no prediction.
        failed: whether the program ended before all its steps were followed.
    """

    name: str
    prediction: PredictedStep | None
    error: SteptraceError | None = None
    failed: bool = False

    @property
    def shown(self) -> str:
        """Its name as a reader sees it: a variant's without the study's part, a command as it is."""
        return fmt.variant(self.name)


def follow_command(  # noqa: PLR0913
    command: Sequence[str],
    *,
    warmup: int,
    steps: int | None = None,
    devices: int | None = None,
    gpu: Gpu | None = None,
    judged: bool = False,
    compiles: bool = False,
    follows_compiled: bool = False,
    limit_s: float | None = None,
) -> FollowedProgram:
    """Follow a program. Its standard output goes to standard error, since the command's own is the prediction.

    Args:
        command: the program and its arguments.
        warmup: steps before those that are followed.
        steps: how many are followed; None: some, and whole periods of its branches on a step counter.
        devices: GPUs of the virtual machine.
        gpu: which ones they are, for a program that asks; None: H100.
        judged: whether a budget rests on them, which takes more.
        compiles: whether to find what compiling its model would give.
        follows_compiled: whether to find the graph breaks of compiled code, also without an estimate.
        limit_s: seconds after which the program is interrupted; steps that were followed until then count. None: never.

    Raises:
        LaunchError: no step was followed.
    """
    with scratch_folder() as scratch:
        least, longest = (JUDGED_STEPS, PERIOD_JUDGED) if judged else (PREDICTED_STEPS, PERIOD_FOLLOWED)
        settings = LaunchSettings(
            scratch,
            "predict",
            warmup,
            least if steps is None else steps,
            profile=0,
            gpus=devices,
            longest_period=longest if steps is None else 1,
            driver=None if gpu is None else asdict(driver_facts(gpu)),
            compiles=compiles,
            follows_compiled=follows_compiled,
            limit_s=limit_s,
        )
        say(PLACEHOLDERS)
        launched = launch(command, settings, output=sys.stderr, status=say)
        require_steps(launched, command)
        prediction = prediction_of(launched, shlex.join(command))
        if not launched.complete:
            next_step = f"\n  next: {why(launched)}" if launched.failed and launched.stopped is None else ""
            followed = len(prediction.by_step)
            # With more steps than asked for, the number for whole periods of a branch is not known here.
            asked = f" of {settings.steps}" if followed < settings.steps else ""
            warn(f"{ended(launched)} after {followed}{asked} followed steps{next_step}")
        # After all steps were followed we stopped the program, so its exit code means nothing.
        prediction = msgspec.structs.replace(prediction, exit_code=None if launched.complete else launched.exit_code)
        return FollowedProgram(shlex.join(command), prediction, failed=launched.failed)
