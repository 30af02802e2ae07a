"""partial.py: in a folder with results/, the pages of studies that are not done, of what there is of them."""

import sys
from pathlib import Path

from steptrace.errors import SteptraceError
from steptrace.workflow.partial import write_partial_pages

if __name__ == "__main__":  # the processes that read traces import this file
    try:
        pages = write_partial_pages(Path("results"), Path("reports"))
    except SteptraceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print("\n".join(f"partial: {page}" for page in pages) or "no study is half done", file=sys.stderr)
