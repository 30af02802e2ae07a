"""The program of a study's variant: `python -m steptrace.lab CONFIG.yaml [--repeat K]`.

It trains until it is stopped. Under a probe it joins the measurement of its process (`steptrace.engine.session`): it
reports its steps itself, runs the study's passes between the phases (sections, input, memory, and the bandwidth between
several ranks), and ends when the measurement is complete. The same probe measures any other program: see
`steptrace.launch`.

Repeat K uses seed + K. With `distributed.world_size` above 1 `torchrun` starts the program once per rank. All ranks run
the same steps.

A training that raises ends with its traceback and exit code 1; one that cannot start (a `SteptraceError`) with a
message and exit code 2.
"""

import argparse
import faulthandler
import signal
from pathlib import Path

from torch import nn

import steptrace
from steptrace.config.resolved import TrainingConfig
from steptrace.engine import session as sessions
from steptrace.engine.memory import MemoryLook
from steptrace.engine.session import Session
from steptrace.engine.steps import Step
from steptrace.errors import code_of
from steptrace.lab.distributed import barrier, process_group, ranks_of
from steptrace.lab.loop import Training, train_step
from steptrace.lab.passes import StudyPasses
from steptrace.lab.setup import load_config, training
from steptrace.rank import Rank


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m steptrace.lab", description="Train a variant of a study.")
    parser.add_argument("config", type=Path, help="resolved config of the variant (YAML)")
    parser.add_argument("--repeat", type=int, default=0, help="number of the repeat, from 0")
    options = parser.parse_args(arguments)
    faulthandler.register(signal.SIGTERM, file=2, chain=True)  # at its time limit it prints its stack
    return code_of(lambda: _train(options))


def _train(options: argparse.Namespace) -> int:
    config = load_config(options.config)
    ranks = ranks_of(config)
    with process_group(config, ranks):
        # A separate function, so that the model is freed before the group ends.
        _train_ranks(config, config.seed + options.repeat, ranks)
    return 0


def _train_ranks(config: TrainingConfig, seed: int, ranks: Rank) -> None:
    with training(config, seed, ranks) as parts:
        if sessions.current is None:
            train_unmeasured(parts)
        else:
            train_measured(parts, config, sessions.current)


def train_unmeasured(parts: Training) -> None:
    """Train until stopped from outside."""
    while True:
        train_step(parts)
        steptrace.step()


def train_measured(parts: Training, config: TrainingConfig, session: Session) -> None:
    """Train until the measurement is over, and run the study's passes between its phases."""
    modules = [module for module in (parts.model, parts.loss) if isinstance(module, nn.Module)]
    passes = StudyPasses(parts, config, MemoryLook(modules, [parts.optimizer]), session)
    samples = parts.accumulate * config.data.batch_size
    barrier(parts.ranks)  # otherwise the first step would include the wait for a later rank
    session.join(between=passes.between)
    while not session.is_over:
        try:
            loss, wait_ns = train_step(parts)
        except Exception as error:
            session.failed(error)
        else:
            session.step(Step(parts.accumulate, parts.accumulate, samples, wait_ns, losses=[loss]))
