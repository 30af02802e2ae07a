"""Read by every interpreter. Snakemake imports pandas to see whether a param is a frame, 0.4 s a call; none is."""

import importlib.util
import sys

# The executor plugin of Slurm needs it.
if sys.orig_argv[1:3] == ["-m", "snakemake"] and not importlib.util.find_spec("snakemake_executor_plugin_slurm"):
    sys.modules["pandas"] = None
