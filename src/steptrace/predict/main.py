"""The syncs of one training step on CUDA: `python -m steptrace.predict.main --config CONFIG.yaml --out DIR`.

Leaves prediction.json in DIR. What cannot be predicted ends with a message and exit code 2.

A first step creates what later ones find (optimizer states, the scale of a gradient scaler, caches), so a second one
is predicted, by the loop of the trainings. Of several ranks one is followed, in a group of its own, which copies and
reduces gradients as a larger one does. Its buckets are laid out anew in the second step, or with a static graph in the
third one, so the fourth is predicted.
"""

import argparse
import gc
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch import distributed as dist

from steptrace.documents import probe
from steptrace.documents.base import convert
from steptrace.documents.prediction import predicted_step
from steptrace.engine.frames import LOOK_PAST
from steptrace.errors import PredictError, SteptraceError, code_of
from steptrace.estimate.driver import DriverFacts, driver_facts
from steptrace.estimate.gpus import gpu_named
from steptrace.predict.fault import fault_report
from steptrace.predict.recorder import Prediction, Syncs
from steptrace.predict.reroute import predict_syncs
from steptrace.predict.rule import declared_rules
from steptrace.predict.rules import RuleTable
from steptrace.rank import ALONE, Rank
from steptrace.record import PREDICTION_FILE, write_document
from steptrace.train.distributed import stay_on_this_machine
from steptrace.train.loop import Training, train_step
from steptrace.train.setup import assembled, build_loader, endless, load_config

#: Of so many steps there are samples; further steps see them again.
_STEPS = 2


def predict_config(path: Path, *, batch_size: int | None = None, gpu: str | None = None) -> Prediction:
    """Predict a training step of a resolved config on CUDA, whatever device the config names.

    For a process of its own: the config's seed, precision and folders of modules stay set in it.

    A model or loss that calls operators of its own can say what they do on CUDA: `predict_rules`, an attribute or
    property with rows as mappings (`op`, `syncs` per call, `source`, `reason`, optionally `kind`).

    Args:
        path: the resolved config (YAML).
        batch_size: in place of the config's.
        gpu: the name of the GPU that models and losses are told of; None: H100.

    Raises:
        ConfigError: the config cannot be read, or there is no such GPU.
        PredictError: its step cannot be run on the virtual device.
    """
    config = load_config(path)
    config.data.update(num_workers=0, shuffle=False, batch_size=batch_size or config.data.batch_size)
    _fit_data(config)
    with _of_group(config.distributed.world_size) as rank:
        prediction = _predict_step(config, rank, path, None if gpu is None else driver_facts(gpu_named(gpu)))
    return replace(prediction, batch_size=config.data.batch_size, devices=config.distributed.world_size)


def _fit_data(config: DictConfig) -> None:
    """A few steps need few samples, and some of our data sets write a GPU's thousands of images when they are made.

    What the `length` of somebody else's data set means is not known.
    """
    dataset = config.data.dataset
    if dataset._target_.startswith("steptrace.workloads.") and "length" in dataset:
        dataset.length = _STEPS * config.step.accumulate * config.data.batch_size


@contextmanager
def _of_group(size: int) -> Generator[Rank]:
    """The first of so many ranks, in a group without the others."""
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


def _predict_step(config: DictConfig, rank: Rank, path: Path, driver: DriverFacts | None) -> Prediction:
    """The syncs of a step behind those that set up; the training ends with this call, before its group does."""
    with predict_syncs(driver=driver) as syncs:
        try:
            training = _assembled(config, rank, syncs)
            for _ in range(1 if rank.alone else 3):
                train_step(training)
            syncs.reset()
            syncs.batch_arrives()
            train_step(training)
        except SteptraceError:
            raise
        except Exception as error:
            raise PredictError(
                f"the step failed on the virtual device ({type(error).__name__}: {error}){_raised_at(error)}",
                where=path,
                next_step=fault_report(error)
                or "try it on CUDA or the CPU; a step that runs there but not here is a gap of the prediction",
            ) from error
        return Prediction.of(syncs)


def _raised_at(error: BaseException) -> str:
    """Where in the program an error arose: its innermost line that is neither PyTorch's nor the prediction's."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((*LOOK_PAST, "<frozen "))]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def _assembled(config: DictConfig, rank: Rank, syncs: Syncs) -> Training:
    """The config's training on "cuda", built from its seed, without the processes of a loader: they make no syncs.

    A compiled model is followed as its eager one, and a note tells that it is another one.
    """
    device = torch.device("cuda")
    training = assembled(config, device, config.seed, lambda: endless(build_loader(config, device, config.seed)), rank)
    syncs.rules = RuleTable([*declared_rules(training.model), *declared_rules(training.loss)])
    return training


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Predict the syncs of one training step on CUDA, without one.")
    parser.add_argument("--config", type=Path, required=True, help="resolved config of a variant (YAML)")
    parser.add_argument("--batch-size", type=int, help="in place of the config's")
    parser.add_argument("--gpu", help="the GPU that models and losses are told of; default: H100")
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
