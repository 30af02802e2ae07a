"""The syncs of one training step on CUDA: `python -m steptrace.predict.main --config CONFIG.yaml --out DIR`.

Leaves prediction.json in DIR. What cannot be predicted ends with a message and exit code 2.
"""

import argparse
import sys
from pathlib import Path

from steptrace.errors import SteptraceError
from steptrace.predict.drive import predict_config
from steptrace.record import PREDICTION_FILE, write_prediction


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Predict the syncs of one training step on CUDA, without one.")
    parser.add_argument("--config", type=Path, required=True, help="resolved config of a variant (YAML)")
    parser.add_argument("--batch-size", type=int, help="in place of the config's")
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {PREDICTION_FILE}")
    options = parser.parse_args(arguments)
    # A failed prediction must not leave an older one to be read in its place.
    (options.out / PREDICTION_FILE).unlink(missing_ok=True)
    try:
        prediction = predict_config(options.config, batch_size=options.batch_size)
        write_prediction(options.out, prediction.to_json())
    except SteptraceError as error:
        sys.stdout.flush()  # both may be one file, in which the error comes last
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{prediction.total} syncs, {len(prediction.unknown)} operations not covered\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
