"""`steptrace find-batch`: the largest batch that a variant can train with, predicted from a few sizes and verified.

This process does not import torch: every size is tried in a process of its own (`steptrace.train.batch_memory`), under
the supervisor that runs the studies' trainings too, so that running out of memory is an answer and not the end. As they
are, trials are forked from one process that has imported torch and used no GPU.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from steptrace.commands.numbers import positive
from steptrace.commands.output import columns, show
from steptrace.commands.studies import named_study
from steptrace.compare.memory import MOST_RESIDUAL, PeakLine, fit_peaks
from steptrace.errors import ConfigError, TrainError
from steptrace.files import read_versioned
from steptrace.record import read_memory, read_status
from steptrace.train import fork_client

EXIT_NOTHING_FITS: Final = 1
_FILE: Final = "batches.json"
#: Steps after which a size counts as one that fits: the first allocates the optimizer's state, the second stays.
_STEPS: Final = 3
_MOST_TRIALS: Final = 18


@dataclass(frozen=True)
class Trial:
    """One size that was run: whether it fits, and its peak if that was measured."""

    batch_size: int
    fits: bool
    peak_bytes: int | None = None


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Measure the peak memory of a few short trainings, draw a line through the peaks, predict the "
        "largest batch and verify it by running it and a larger one. Exit code 1 if not even a batch of 1 fits."
    )
    command.add_argument("study", metavar="STUDY", help="a study's name")
    command.add_argument("variant", metavar="VARIANT", nargs="?", help="one of its variants; the baseline if none is")
    command.add_argument(
        "--limit-mb", type=positive, metavar="N", help="find what fits N MiB, in place of the device's memory"
    )
    command.add_argument(
        "--within",
        type=positive,
        default=2,
        metavar="PERCENT",
        help="end when the smallest size known to fail is this close to the largest known to fit (default 2)",
    )
    command.add_argument("--scale", default="auto", metavar="NAME", help="cpu, gpu or auto (default)")


def run(arguments: argparse.Namespace) -> int:
    """Search, print, and return the exit code."""
    name, text, config = _variant(arguments.study, arguments.variant, arguments.scale)
    if "program" in config:
        raise ConfigError(
            "a program decides its batch itself",
            where=name,
            expected="a study of models and losses",
            next_step="a matrix over an argument of the program: matrix: {batch: [8, 16]}, and {batch} in its command",
        )
    if config["distributed"]["world_size"] > 1:
        raise ConfigError("find-batch trains in one process", where=name, expected="distributed.world_size=1")
    with tempfile.TemporaryDirectory(prefix="steptrace-") as scratch:
        path = Path(scratch) / "config.yaml"
        path.write_text(text, encoding="utf-8")
        search = Search(path, config["device"], arguments.limit_mb, within=arguments.within / 100)
        search.measure(config["data"]["batch_size"])
        search.verify()
    show(arguments, _document(name, search), _text(name, search))
    return 0 if search.fits else EXIT_NOTHING_FITS


class Search:
    """Runs trainings at batch sizes, one process each, and keeps what they say.

    Args:
        config: the variant's configuration; what the trainings leave lies beside it.
        device: what it trains on.
        limit_mb: in place of the device's memory, in MiB.
        within: the search ends when the smallest size that fails is larger than the largest that fits by this share.
    """

    def __init__(self, config: Path, device: str, limit_mb: int | None, *, within: float) -> None:
        self._config, self._device, self._limit_mb, self._within = config, device, limit_mb, within
        self.trials: list[Trial] = []
        self.samples = 0
        self.capacity_bytes: int | None = None
        self.capacity_source: str | None = None
        #: The line through the peaks, and the largest batch by it.
        self.fit: PeakLine | None = None
        self.predicted: int | None = None

    @property
    def fits(self) -> int:
        """The largest size that was seen to fit, 0 if none was."""
        return max((trial.batch_size for trial in self.trials if trial.fits), default=0)

    @property
    def fails(self) -> int | None:
        """The smallest size that was seen not to fit."""
        return min((trial.batch_size for trial in self.trials if not trial.fits), default=None)

    def measure(self, batch_size: int) -> None:
        """Take the peaks at up to three sizes around the configured one, and predict; below it, if those do not fit."""
        most = max(batch_size, 4)
        self._try([most // 4, most // 2, most], measure=True)
        if self.fits == 0 and self.fails != 1:
            self._try([1], measure=True)
        self.fit = fit_peaks({t.batch_size: t.peak_bytes for t in self.trials if t.peak_bytes is not None})
        if self.fit is not None and self.capacity_bytes is not None:
            largest = self.fit.largest(self.capacity_bytes)
            self.predicted = None if largest is None else min(max(largest, 1), self.samples)

    def verify(self) -> None:
        """Close in on the largest size that fits: by strides that double, then by halving.

        It begins at the predicted size with a small stride; without a prediction each size is twice the last.
        """
        size = self.predicted or 2 * self.fits
        stride = self._stride(size) if self.predicted else size
        while self.fits and not self._closed() and len(self.trials) < _MOST_TRIALS:
            if self.fails is None:
                size = min(max(size, self.fits + 1), self.samples)
            elif not self.fits < size < self.fails:
                size = (self.fits + self.fails) // 2
            self._try([size])
            size = self.fits + stride if self.fits == size else size - stride
            stride *= 2

    def _closed(self) -> bool:
        """Whether the answer is known: all samples fit, or the next size is known to fail."""
        if self.fails is None:
            return self.fits >= self.samples
        return self.fails - self.fits <= self._stride(self.fits)

    def _stride(self, size: int) -> int:
        return max(int(size * self._within), 1)

    def _try(self, sizes: Sequence[int], *, measure: bool = False) -> None:
        out = self._config.with_name(f"trial{len(self.trials)}")
        options = ["--measure", "--steps", "2"] if measure else ["--steps", str(_STEPS)]
        if self._limit_mb is not None:
            options += ["--limit-mb", str(self._limit_mb)]
        module = [sys.executable, "-m", "steptrace.train.batch_memory", "--config", str(self._config), *options]
        supervised = ["--out", str(out), "--attempt", "1", "--label", f"batch of {', '.join(map(str, sizes))}"]
        supervised += ["--parent", str(os.getpid()), "--server", "trials"]
        supervised += ["--device", "cuda"] if self._device == "cuda" else []
        command = [sys.executable, "-m", "steptrace.train.supervise", *supervised, "--", *module, "--out", str(out)]
        environment = {**os.environ, fork_client.VARIABLE: "1"}
        done = subprocess.run([*command, "--batch-size", *map(str, sizes)], env=environment, check=False)
        if done.returncode != 0:
            raise TrainError("a trial was stopped", where=f"batch of {sizes[0]}")
        self._read_trials(out, sizes)

    def _read_trials(self, out: Path, sizes: Sequence[int]) -> None:
        """Add what a process left behind to what is known."""
        status = read_status(out)
        if status.status not in ("ok", "oom"):
            raise TrainError(status.error or status.status, where=f"batch of {', '.join(map(str, sizes))}")
        # The kernel may end a process before it has written anything.
        nothing = {"sizes": [], "tried": list(sizes)}
        found: dict[str, Any] = read_versioned(out / _FILE) if (out / _FILE).exists() else nothing
        if status.status == "oom":
            self.trials.append(Trial(found["tried"][len(found["sizes"])], fits=False))
        for entry in found["sizes"]:
            self.trials.append(Trial(entry["batch_size"], fits=True, peak_bytes=entry["peak_bytes"]))
        self.samples = found.get("samples", self.samples)
        if (memory := read_memory(out)) is not None:
            self.capacity_bytes, self.capacity_source = memory.capacity_bytes, memory.capacity_source
        self.capacity_bytes = found.get("capacity_bytes", self.capacity_bytes)
        self.capacity_source = found.get("capacity_source", self.capacity_source)


def _variant(study: str, variant: str | None, scale: str) -> tuple[str, str, dict[str, Any]]:
    """A variant's name, the text of its resolved configuration, and the configuration."""
    with tempfile.TemporaryDirectory(prefix="steptrace-") as folder:
        loaded = named_study(study, Path(folder), expected="a study's name", changes={"scale": scale})
    chosen = loaded.variant(variant or loaded.baseline)
    return f"{study}/{chosen.name}", chosen.composed.snapshot(study=study, variant=chosen.name), chosen.config


def _document(name: str, search: Search) -> dict[str, Any]:
    told = ("fixed_bytes", "per_sample_bytes", "residual", "holds")
    line = None if search.fit is None else {key: getattr(search.fit, key) for key in told}
    return {
        "variant": name,
        "capacity_bytes": search.capacity_bytes,
        "capacity_source": search.capacity_source,
        "samples": search.samples,
        "fit": line,
        "predicted_batch": search.predicted,
        "largest_batch": search.fits or None,
        "smallest_failing_batch": search.fails,
        "trials": [asdict(trial) for trial in search.trials],
    }


def _text(name: str, search: Search) -> str:
    source = {"limit": "the limit", "device": "the GPU's memory", "machine": "the machine's memory"}
    room = "not known" if search.capacity_bytes is None else _size(search.capacity_bytes)
    lines = [f"{name}: capacity {room} ({source.get(search.capacity_source or '', 'not told')})"]
    rows = [
        (str(t.batch_size), "fits" if t.fits else "out of memory", "-" if t.peak_bytes is None else _size(t.peak_bytes))
        for t in search.trials
    ]
    lines += columns(("batch", "outcome", "peak"), rows)
    if any(trial.fits and trial.peak_bytes is None for trial in search.trials):
        lines.append("  a size without a peak was trained with, and its peak not taken")
    if (fit := search.fit) is not None:
        residual = "" if fit.residual is None else f", residual {fit.residual:.1%}"
        lines.append(f"  peak = {_size(fit.fixed_bytes)} + {_size(fit.per_sample_bytes)} x batch{residual}")
        if not fit.holds:
            lines.append(
                f"  peak memory is not linear in batch size (residual over {MOST_RESIDUAL:.0%}): no prediction"
            )
    if search.predicted is not None:
        lines.append(f"  predicted: {search.predicted}")
    if not search.fits:
        lines.append("not even a batch of 1 fits: checkpointing, a smaller format or a smaller model are left")
    elif search.fails is None:
        held = "all there is of the data set" if search.fits >= search.samples else "the search ended there"
        lines.append(f"largest batch: {search.fits} (verified; {held})")
    else:
        lines.append(f"largest batch: {search.fits} (verified; {search.fails} does not fit)")
    return "\n".join(lines)


def _size(value: float) -> str:
    return f"{value / 2**20:,.1f} MiB"
