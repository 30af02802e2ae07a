"""The syncs of one training step on CUDA: `python -m steptrace.predict.main --config CONFIG.yaml --out DIR`.

`--callable module:function` predicts anyone's step instead. Leaves prediction.json in DIR. What cannot be predicted
ends with a message and exit code 2.

Several configs are predicted each in a fork of this process, which imports PyTorch once for all. What it leaves and
says is in DIR/STEM, by the name of its file, and as it ends, stdout gets a line with its exit code and its stem.
"""

import argparse
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from steptrace.errors import SteptraceError
from steptrace.files import write_versioned
from steptrace.predict.drive import predict_callable, predict_config
from steptrace.predict.recorder import Prediction
from steptrace.train.lifetime import die_with, leave

#: The name of what is written.
PREDICTION_FILE: Final = "prediction.json"
#: Where one of several configs says what it would say on stdout and stderr.
LOG_FILE: Final = "predict.log"
#: Each takes some hundred MB.
_AT_ONCE: Final = 4


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Predict the syncs of one training step on CUDA, without one.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", type=Path, nargs="+", default=[], help="resolved config of a variant (YAML)")
    what.add_argument("--callable", metavar="MODULE:FUNCTION", help="a training step without arguments")
    parser.add_argument("--batch-size", type=int, help="in place of the config's")
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {PREDICTION_FILE}")
    options = parser.parse_args(arguments)

    def of(config: Path) -> Prediction:
        return predict_config(config, batch_size=options.batch_size)

    if len(options.config) > 1:
        _in_forks(options.config, of, options.out)
        return 0
    return _predict(
        lambda: predict_callable(options.callable) if options.callable else of(*options.config), options.out
    )


def _predict(predicted: Callable[[], Prediction], out: Path) -> int:
    """Leave a prediction in a folder, or say why there is none; return the exit code."""
    # A failed prediction must not leave an older one to be read in its place.
    (out / PREDICTION_FILE).unlink(missing_ok=True)
    try:
        prediction = predicted()
        write_versioned(out / PREDICTION_FILE, prediction.to_json())
    except SteptraceError as error:
        sys.stdout.flush()  # both may be one file, in which the error comes last
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{prediction.total} syncs, {len(prediction.unknown)} operations not judged\n")
    return 0


def _in_forks(configs: Sequence[Path], predicted: Callable[[Path], Prediction], out: Path) -> None:
    importlib.import_module("torch._dynamo")  # the first optimizer of each would
    waiting, running, parent = list(configs), dict[int, str](), os.getpid()
    while waiting or running:
        while waiting and len(running) < min(_AT_ONCE, os.cpu_count() or 1):
            config = waiting.pop(0)
            fork = os.fork()
            if fork == 0:
                _be_fork(partial(predicted, config), out / config.stem, parent)
            running[fork] = config.stem
        fork, status = os.wait()
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)} {running.pop(fork)}\n")
        sys.stdout.flush()


def _be_fork(predicted: Callable[[], Prediction], out: Path, parent: int) -> NoReturn:
    code = 1
    try:
        die_with(parent, signal.SIGKILL)
        out.mkdir(parents=True, exist_ok=True)
        log = os.open(out / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for standard in (1, 2):
            os.dup2(log, standard)
        code = _predict(predicted, out)
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


if __name__ == "__main__":
    sys.exit(main())
