"""Read by every interpreter. Snakemake imports pandas to see whether a param is a frame, 0.4 s a call; none is."""

import sys

if sys.orig_argv[1:3] == ["-m", "snakemake"]:
    sys.modules["pandas"] = None
