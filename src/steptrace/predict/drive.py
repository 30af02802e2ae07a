"""Drives the training step of a resolved config on the virtual device.

A first step creates what later ones find (optimizer states, the scale of a gradient scaler, caches), so a second one
is predicted, by the loop of the trainings. Of several ranks one is followed, by itself: what they tell each other is no
part of it.
"""

import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch.utils.data import DataLoader

from steptrace.engine.call_site import LOOK_PAST
from steptrace.errors import PredictError, SteptraceError
from steptrace.predict.execution import extend_rules
from steptrace.predict.fault import fault_report
from steptrace.predict.recorder import Prediction
from steptrace.predict.reroute import predict_syncs
from steptrace.predict.rule import declared_rules
from steptrace.train.loop import Training, train_step
from steptrace.train.precision import Precision, prepared
from steptrace.train.setup import build_loss, collate_of, read_config

#: Keys without which there is no step.
_NEEDED = ("model", "loss", "data", "optimizer", "precision")

Step = Callable[[], object]
#: Steps that are followed.
_STEPS = 2


def predict_config(path: Path, *, batch_size: int | None = None) -> Prediction:
    """Predict the second training step of a resolved config on CUDA, whatever device the config names.

    A model or loss that calls operators of its own can say what they do on CUDA: `predict_rules`, an attribute or
    property with rows as mappings (`op`, `syncs` per call, `source`, `reason`, optionally `kind`).

    Args:
        path: the resolved config (YAML).
        batch_size: in place of the config's.

    Raises:
        ConfigError: the config cannot be read.
        PredictError: its step cannot be run on the virtual device.
    """
    config = read_config(path, _NEEDED)
    if batch_size is not None:
        config.data.batch_size = batch_size
    _shorten_data(config)
    with torch.random.fork_rng(devices=[]), _importable(config.get("python_path") or []):
        prediction = _predict_second(lambda: _training_step(config), where=str(path))
    return replace(prediction, batch_size=config.data.batch_size)


def _shorten_data(config: DictConfig) -> None:
    """Two steps need few samples, and some of our data sets write a GPU's thousands of images when they are made.

    What the `length` of somebody else's data set means is not known.
    """
    dataset = (config.get("data") or {}).get("dataset") or {}
    if str(dataset.get("_target_", "")).startswith("steptrace.workloads.") and "length" in dataset:
        batches = _STEPS * int((config.get("step") or {}).get("accumulate", 1))
        config.data.dataset.length = min(int(dataset["length"]), batches * int(config.data.batch_size))


def _predict_second(load: Callable[[], Step], *, where: str) -> Prediction:
    with predict_syncs() as syncs:
        try:
            step = load()
            step()
            syncs.reset()
            syncs.batch_arrives()
            step()
        except SteptraceError:
            raise
        except Exception as error:
            raise PredictError(
                f"the step failed on the virtual device ({type(error).__name__}: {error}){_raised_at(error)}",
                where=where,
                next_step=fault_report(error)
                or "try it on CUDA or the CPU; a step that runs there but not here is a gap of the prediction",
            ) from error
        return Prediction.of(syncs)


def _raised_at(error: BaseException) -> str:
    """Where in the program an error arose: its innermost line that is neither PyTorch's nor the prediction's."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((*LOOK_PAST, "<frozen "))]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


@contextmanager
def _importable(folders: list[str]) -> Generator[None]:
    """Search some folders for modules first, for a while."""
    before = sys.path[:]
    sys.path[:0] = [str(Path(folder).resolve()) for folder in folders]  # in place: others may hold the list
    try:
        yield
    finally:
        sys.path[:] = before


def _training_step(config: DictConfig) -> Step:
    """The config's training step on "cuda", built from its seed."""
    torch.manual_seed(config.seed)
    device = torch.device("cuda")
    precision = Precision.from_config(config.precision, device.type)
    with device:  # weights without values cost nothing; on the host a billion of them take 15 s and 4 GB
        model = instantiate(config.model, _convert_="all")
    step = config.get("step") or {}
    model = prepared(model.to(device).train(), {"channels_last": step.get("channels_last"), "compile": None})
    if step.get("compile"):
        model = torch.compile(model)  # the eager step is followed, and a note tells that it is another one
    loss = build_loss(config, device)
    extend_rules([*declared_rules(model), *declared_rules(loss)])
    training = Training(
        model=model,
        loss=loss,
        optimizer=instantiate(config.optimizer, _convert_="all")(model.parameters()),
        precision=precision,
        scaler=precision.scaler(),
        batches=_batches(config),
        device=device,
        non_blocking=config.data.non_blocking,
        accumulate=step.get("accumulate", 1),
        set_to_none=step.get("set_to_none", True),
    )
    return lambda: train_step(training)


def _batches(config: DictConfig) -> Iterator[Any]:
    """The config's batches without worker processes, which make no syncs; pinned if the config says so."""
    data = config.data
    dataset = instantiate(data.dataset, _convert_="all")
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=min(data.batch_size, len(dataset)),
        pin_memory=data.pin_memory,
        drop_last=True,
        collate_fn=collate_of(dataset),
    )
    while True:
        yield from loader
