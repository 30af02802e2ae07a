"""summary.json: the figures of one set of traces. Unmeasured figures are null, never 0.

Each subject is a module here: its tables, their computation, and its part of summary.json. `build` lists every table,
and every key of the summary.
"""

from steptrace.analysis.build import load_trace, summarize, summarize_trace
from steptrace.analysis.counters import write_counters
