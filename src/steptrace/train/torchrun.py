"""torchrun, with the rank that caused a failure in its last line: `python -m steptrace.train.torchrun ARGUMENTS...`."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, get_error_handler
from torch.distributed.run import parse_args, run

from steptrace.processes import in_words

#: Seconds from a rank's death to torchrun's look at it, at most; times are whole seconds.
_LOOKS_AFTER_S: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run torchrun's command line; return the exit code.

    A rank's exception is left in the file that TORCHELASTIC_ERROR_FILE names.
    """
    try:
        run(parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        rank, failure = _cause(error)
        if Path(failure.error_file).is_file():
            get_error_handler().dump_error_file(failure.error_file, failure.exitcode)
        prefix = "error: " if failure.exitcode < 0 else ""  # any other rank has printed its own error
        sys.stderr.write(f"{error}\n{prefix}rank {rank} ended with {in_words(failure.exitcode)}\n")
        return 1
    return 0


def _cause(error: ChildFailedError) -> tuple[int, ProcessFailure]:
    """A rank that was killed, or else the first to fail: another may have lost its connection to the killed one before.

    The others get SIGTERM from torchrun, and SIGKILL if that does not end them in 30 s.
    """
    first = error.get_first_failure()
    for rank, failure in error.failures.items():
        by_signal = failure.exitcode < 0 and -failure.exitcode != signal.SIGTERM
        if by_signal and failure.timestamp - first[1].timestamp <= _LOOKS_AFTER_S:
            return rank, failure
    return first


if __name__ == "__main__":
    sys.exit(main())
