"""`python -m steptrace.train`: see `steptrace.train.main`."""

import sys

from torch.distributed.elastic.multiprocessing.errors import record as told_to_torchrun

from steptrace.train.main import main


@told_to_torchrun
def _start() -> None:
    sys.exit(main())


if __name__ == "__main__":
    _start()
