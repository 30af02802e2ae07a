"""summary.json: what one set of traces says, in numbers. What was not measured is null, never 0.

Each subject is a module here, or a folder of them: its tables, how they are computed, and what of them summary.json
holds. `tables` lists every table, `build` every key of the summary.
"""

from steptrace.analysis.build import analyze, analyze_trace, summarize, summarize_trace
from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.counters import write_counters
