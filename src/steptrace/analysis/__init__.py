"""summary.json: the figures of one set of traces. Unmeasured figures are null, never 0.

Each subject is a module here, or a folder of modules: its tables, their computation, and its part of summary.json.
`tables` lists every table, `build` every key of the summary.
"""

from steptrace.analysis.build import load_trace, summarize, summarize_trace
from steptrace.analysis.counters import write_counters
