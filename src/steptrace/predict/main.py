"""The syncs of one training step on CUDA: `python -m steptrace.predict.main --config CONFIG.yaml --out DIR`.

It writes prediction.json into DIR. If a step cannot be predicted, it ends with a message and exit code 2.

The step is that of the trainings' own loop (`steptrace.lab.loop`). A first step creates what later steps use (optimizer
states, the scale of a gradient scaler, caches), so the second one is predicted. If the loss is read in every n-th step,
n steps are predicted.

A training of several ranks is followed as one rank, in a process group without the others. It copies and reduces
gradients as in a larger group. Buckets are laid out anew in the second step, or with a static graph in the third, so
the fourth is predicted.
"""

import argparse
import dataclasses
import gc
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import distributed as dist

from steptrace.config.resolved import TrainingConfig
from steptrace.config.schema import DataConfig
from steptrace.documents import probe
from steptrace.documents.base import convert
from steptrace.documents.prediction import predicted_step
from steptrace.engine.frames import LOOK_PAST
from steptrace.engine.step_counters import LEAST_STEPS, StepBranch, StepCounters, whole_periods
from steptrace.errors import PredictError, SteptraceError, code_of
from steptrace.estimate.driver import DriverFacts, driver_facts
from steptrace.estimate.gpus import gpu_named
from steptrace.lab.distributed import stay_on_this_machine
from steptrace.lab.loop import Batch, Training, train_step
from steptrace.lab.setup import assembled, build_loader, copied_ahead, endless, load_config
from steptrace.limits import PERIOD_JUDGED
from steptrace.predict.entry import predict_syncs
from steptrace.predict.fault import fault_report
from steptrace.predict.prediction import Prediction
from steptrace.predict.sync_rule import declared_rules
from steptrace.predict.sync_rules import SyncRules
from steptrace.predict.syncs import Syncs
from steptrace.rank import ALONE, Rank
from steptrace.run_folder import PREDICTION_FILE, write_document

#: The data set has samples for so many steps. Further steps see them again.
_STEPS = 2


def predict_config(path: Path, *, batch_size: int | None = None, gpu: str | None = None) -> Prediction:
    """The prediction of a training step on CUDA, by a resolved config, whatever device the config names.

    To be called in a process of its own: the config's seed, precision and folders of modules stay set in it.

    A model or loss with custom operators can say what they do on CUDA by `predict_rules`, an attribute or property with
    rows as mappings (`op`, `syncs` per call, `source`, `reason`, optionally `kind`).

    Args:
        path: the resolved config (YAML).
        batch_size: in place of the config's.
        gpu: the name of the GPU that models and losses see; None: H100.

    Raises:
        ConfigError: the config cannot be read, or there is no such GPU.
        PredictError: its step cannot be run on the virtual device.
    """
    config = load_config(path)
    config = replace(config, data=_few_data(config, batch_size or config.data.batch_size))
    with _of_group(config.distributed.world_size) as rank:
        prediction = _predict_step(config, rank, path, None if gpu is None else driver_facts(gpu_named(gpu)))
    samples = config.data.batch_size * config.step.accumulate
    return dataclasses.replace(prediction, batch_size=samples, devices=config.distributed.world_size)


def _few_data(config: TrainingConfig, batch_size: int) -> DataConfig:
    """The config's data, loaded without worker processes and in order, with only the samples that are needed.

    Some of our data sets write thousands of images when they are created. The `length` of any other data set stays as
    it is, since its meaning is not known.
    """
    dataset = config.data.dataset
    if dataset["_target_"].startswith("steptrace.workloads.") and "length" in dataset:
        dataset = {**dataset, "length": _STEPS * config.step.accumulate * batch_size}
    return replace(
        config.data,
        dataset=dataset,
        batch_size=batch_size,
        num_workers=0,
        prefetch_factor=None,
        persistent_workers=False,
        shuffle=False,
    )


@contextmanager
def _of_group(size: int) -> Generator[Rank]:
    """The first of so many ranks, in a process group without the others."""
    if size == 1 or dist.is_initialized():
        yield ALONE
        return
    stay_on_this_machine()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield Rank(world_size=size)
    finally:
        gc.collect()  # no model may outlive the group
        dist.destroy_process_group()


def _predict_step(config: TrainingConfig, rank: Rank, path: Path, driver: DriverFacts | None) -> Prediction:
    """The prediction of a step after those that set up. The training ends with this call, before its process group."""
    with predict_syncs(driver=driver, follow_compiled=True) as syncs:
        try:
            training = _assembled(config, rank, syncs)
            branches = _branches(training, syncs, least=1 if rank.alone else LEAST_STEPS)
            syncs.reset()
            by_step = []
            # A loss that is read more rarely than in the steps that are judged counts 0 syncs per step.
            between_reads = min(config.step.read_loss_every or 1, PERIOD_JUDGED)
            for _ in range(whole_periods(branches, least=between_reads, most=PERIOD_JUDGED)):
                before = syncs.total
                syncs.thread.batch_arrives()
                train_step(training)
                syncs.step_ends()
                by_step.append(syncs.total - before)
        except SteptraceError:
            raise
        except Exception as error:
            raise PredictError(
                f"the step failed on the virtual device ({type(error).__name__}: {error}){_raised_at(error)}",
                where=path,
                next_step=fault_report(error)
                or "try it on CUDA or the CPU; a step that runs there but not here is a gap of the prediction",
            ) from error
        complete = dataclasses.replace(Prediction.so_far(syncs), branches=tuple(branches))
        return dataclasses.replace(complete, by_step=tuple(by_step) if len(by_step) > 1 else ())


def _branches(training: Training, syncs: Syncs, *, least: int) -> list[StepBranch]:
    """Take the steps that set up, at least `least`, and return the training's branches on a step counter.

    If models and losses compare no remainder in the first step, further steps would show no branch either.
    """
    counters = StepCounters(syncs.thread.paused)
    counters.watch()
    try:
        steps = 0
        while steps < least or (counters.sees_any and not counters.watched_enough):
            train_step(training)
            counters.step_ends()
            steps += 1
    finally:
        counters.stop()
    return counters.branches()


def _raised_at(error: BaseException) -> str:
    """The innermost line of the program that raised an error, as " at FILE:LINE"; empty if there is none."""
    stack = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in stack if not frame.filename.startswith((*LOOK_PAST, "<frozen "))]
    return f" at {lines[-1].filename}:{lines[-1].lineno}" if lines else ""


def _assembled(config: TrainingConfig, rank: Rank, syncs: Syncs) -> Training:
    """The config's training on "cuda", built from its seed. It loads without worker processes, which make no syncs.

    A compiled model is followed in its eager form, and a note says so.
    """
    device = torch.device("cuda")

    def batches() -> Generator[Batch]:
        return copied_ahead(endless(build_loader(config, device, config.seed)), config, device)

    training = assembled(config, device, config.seed, batches, rank)
    syncs.rules = SyncRules([*declared_rules(training.model), *declared_rules(training.loss)])
    return training


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Predict the syncs of one training step on CUDA, without one.")
    parser.add_argument("--config", type=Path, required=True, help="resolved config of a variant (YAML)")
    parser.add_argument("--batch-size", type=int, help="in place of the config's")
    parser.add_argument("--gpu", help="the GPU that models and losses see; default: H100")
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {PREDICTION_FILE}")
    options = parser.parse_args(arguments)
    return code_of(lambda: _predict(options))


def _predict(options: argparse.Namespace) -> int:
    prediction = predict_config(options.config, batch_size=options.batch_size, gpu=options.gpu)
    followed = convert(prediction.to_json(), probe.Prediction)
    write_document(options.out, predicted_step([followed]))
    sys.stdout.write(f"{prediction.total} syncs, {len(prediction.unknown)} operations not covered\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
