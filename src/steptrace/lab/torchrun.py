"""torchrun whose last line names the rank that caused a failure: `python -m steptrace.lab.torchrun ARGUMENTS...`."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, get_error_handler
from torch.distributed.run import parse_args, run

from steptrace.processes import in_words

#: The most seconds from a rank's death to torchrun's notice of it; torchrun's times are whole seconds.
_LOOKS_AFTER_S: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run torchrun's command line; return the exit code.

    The exception of a failed rank is written to the file that TORCHELASTIC_ERROR_FILE names.
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
    """The rank that caused a failure: one that a signal killed, otherwise the first to fail.

    A rank that has lost its connection to a killed one may fail before torchrun notices the killed one. The other ranks
    get SIGTERM from torchrun, and SIGKILL if they have not ended after 30 s.
    """
    first = error.get_first_failure()
    for rank, failure in error.failures.items():
        by_signal = failure.exitcode < 0 and -failure.exitcode != signal.SIGTERM
        if by_signal and failure.timestamp - first[1].timestamp <= _LOOKS_AFTER_S:
            return rank, failure
    return first


if __name__ == "__main__":
    sys.exit(main())
