"""summary.json: the figures of one set of traces. Unmeasured figures are null, never 0.

Each subject is a module here: its tables, their computation, and its part of summary.json. `build` imports all of them,
and each attaches what it computes to `common.registry`: `TABLES` has every table by its name.
"""

from steptrace.analysis.build import load_trace, summarize, summarize_trace
from steptrace.analysis.common.registry import TABLES
from steptrace.analysis.counters import write_counters
