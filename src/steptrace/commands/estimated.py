"""Estimates of followed steps on named GPUs: the rows of `steptrace predict --gpu`."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from steptrace import format as fmt
from steptrace.commands.output import columns
from steptrace.documents.estimate import Estimate
from steptrace.documents.operators import COMPILED
from steptrace.errors import ConfigError
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.prediction import estimate_prediction

_HEAD: Final = ("GPU", "batch", "step", "GPU work", "GPU busy", "limited by", "launches", "memory", "largest batch")
_NONE: Final = "-"
_PLACE: Final = "{batch}"
#: So many operators without a rule are listed.
_LISTED: Final = 5


def estimates(predictions: Mapping[int | None, Mapping[str, Any]], gpus: Sequence[Gpu]) -> list[Estimate]:
    """The estimate of each batch on each GPU; `predictions` by batch, None where it is not known."""
    peaks = {
        batch: prediction["peak_memory_bytes"]
        for batch, prediction in predictions.items()
        if batch is not None and prediction.get("peak_memory_bytes") is not None
    }
    return [
        estimate_prediction({**prediction, "batch_size": batch}, gpu, peaks=peaks)
        for gpu in gpus
        for batch, prediction in predictions.items()
    ]


def check_batches(command: Sequence[str], batches: Sequence[int]) -> None:
    """Raise `ConfigError` where `--batch` and `{batch}` in a command do not go together."""
    holds = any(_PLACE in word for word in command)
    if batches and not holds:
        raise ConfigError(
            f"--batch without {_PLACE} in the command changes nothing",
            where=shlex.join(command),
            next_step=f"write {_PLACE} where the command has its batch size: --batch-size {_PLACE}",
        )
    if holds and not batches:
        raise ConfigError(
            f"{_PLACE} in the command is not replaced", where=shlex.join(command), next_step="add --batch N[,N]"
        )


def with_batch(command: Sequence[str], batch: int | None) -> list[str]:
    """The command with a batch in its place."""
    return [word if batch is None else word.replace(_PLACE, str(batch)) for word in command]


def as_json(listed: Sequence[Estimate]) -> list[dict[str, Any]]:
    """Plain data for `--json`."""
    rows: list[dict[str, Any]] = msgspec.to_builtins(listed)
    return rows


def table(listed: Sequence[Estimate], *, ranks: int = 1) -> list[str]:
    """The lines of the table, and under it why a row has no figure and what no rule covers; `ranks` of the program."""
    lines = ["  estimated, not measured:", *columns(_HEAD, [_row(one) for one in listed])]
    lines += [f"    {_name(one)}: not estimated: {one.reason}" for one in listed if one.reason is not None]
    if ranks > 1:
        lines.append(f"    rank 0 of {ranks}; collectives are not estimated")
    for one in listed[:1]:
        missing = [call for call in one.not_estimated if call.name != COMPILED]
        lines += [
            f"    not covered: {call.name}, {fmt.count(call.calls)}x per step, "
            f"{fmt.percent(call.share_pct)} of the GPU work{_place(call.file, call.line)}: {call.reason}"
            for call in missing[:_LISTED]
        ]
        if len(missing) > _LISTED:
            lines.append(f"    and {len(missing) - _LISTED} more in --json")
        if one.assumed:
            share = sum(copy.share_pct for copy in one.assumed)
            lines.append(
                f"    assumed: copies with the host, {fmt.percent(share)} of the GPU work, {one.assumed[0].reason}"
            )
    return lines


def _row(one: Estimate) -> tuple[str, ...]:
    from steptrace.findings.estimated import busy_words, memory_words, step_words  # imports numpy, as `--help` need not

    return (
        one.gpu,
        _NONE if one.batch is None else str(one.batch),
        step_words(one),
        _NONE if one.gpu_ms is None else fmt.band_ms(*one.gpu_ms),
        busy_words(one),
        one.limited_by or _NONE,
        _NONE if one.launches is None else fmt.count(one.launches),
        memory_words(one),
        _NONE if one.largest_batch is None else str(one.largest_batch),
    )


def _name(one: Estimate) -> str:
    return one.gpu if one.batch is None else f"{one.gpu}, batch {one.batch}"


def _place(file: str | None, line: int | None) -> str:
    return "" if file is None else f", {file}:{line}"
