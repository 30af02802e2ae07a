"""`python -m steptrace.lab`: see `steptrace.lab.main`."""

import sys

from torch.distributed.elastic.multiprocessing.errors import record

from steptrace.lab import main as program


@record
def main(arguments: list[str] | None = None) -> int:
    """Run the command line; an error is left for torchrun, and for the supervisor."""
    return program.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
