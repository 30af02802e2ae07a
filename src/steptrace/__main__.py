"""`python -m steptrace`: the command line without its script on the path."""

import sys

from steptrace.cli import main

if __name__ == "__main__":
    sys.exit(main())
