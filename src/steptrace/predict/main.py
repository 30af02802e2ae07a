"""The syncs of one training step on CUDA: `python -m steptrace.predict.main --config CONFIG.yaml --out DIR`.

`--callable module:function` predicts anyone's step instead. Leaves prediction.json in DIR. What cannot be predicted
ends with a message and exit code 2.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from steptrace.errors import SteptraceError
from steptrace.files import write_versioned
from steptrace.predict.drive import predict_callable, predict_config
from steptrace.predict.recorder import Prediction

#: The name of what is written.
PREDICTION_FILE: Final = "prediction.json"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Predict the syncs of one training step on CUDA, without one.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", type=Path, help="resolved config of a variant (YAML)")
    what.add_argument("--callable", metavar="MODULE:FUNCTION", help="a training step without arguments")
    parser.add_argument("--batch-size", type=int, help="in place of the config's")
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {PREDICTION_FILE}")
    options = parser.parse_args(arguments)

    return _predict(
        lambda: (
            predict_callable(options.callable)
            if options.callable
            else predict_config(options.config, batch_size=options.batch_size)
        ),
        options.out,
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


if __name__ == "__main__":
    sys.exit(main())
