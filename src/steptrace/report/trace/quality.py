"""What a reader should know before trusting the trace."""

from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Topic

_TERMS = (
    Definition(
        "Checks",
        "Each holds the trace against what a whole one would hold. It warns if what is missing could change a figure; "
        "a figure that was not measured is shown as such, never as 0. A file whose end is missing is refused whole.",
    ),
)

TOPIC = Topic("quality", "Trace quality", _TERMS)
