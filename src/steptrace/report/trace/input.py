"""How long the steps waited for their data."""

from steptrace.report.page import definitions as defs
from steptrace.report.trace.model import Topic

#: More steps than this are not listed.
MOST_STEPS = 20

TOPIC = Topic(
    "input",
    "Waiting for data",
    defs.definitions(defs.INPUT_TERMS[:2]),
    data=lambda _: {"most_steps": MOST_STEPS},
)
