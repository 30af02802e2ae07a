"""summary.json: what one set of traces says, in numbers. What was not measured is null, never 0.

Each section of the summary is one module here, listed in `build.SECTIONS` (or `build.RANK_SECTIONS`, over all ranks):
`tables` computes its metrics' tables, `record` condenses them to the keys it adds.
"""

from steptrace.analysis.build import SCHEMA_VERSION, analyze, analyze_trace, summarize, summarize_trace, write_tables
from steptrace.analysis.common.analysis import Analysis, RankSection, Section, records
from steptrace.analysis.counters import write_counters

__all__ = [
    "SCHEMA_VERSION",
    "Analysis",
    "RankSection",
    "Section",
    "analyze",
    "analyze_trace",
    "records",
    "summarize",
    "summarize_trace",
    "write_counters",
    "write_tables",
]
