"""How long the steps waited for their data."""

from steptrace.report.page import definitions as defs
from steptrace.report.trace.model import Topic, unless

TOPIC = Topic(
    "input",
    "Waiting for data",
    defs.definitions(defs.INPUT_TERMS[:2]),
    most=20,
    unmeasured=unless(lambda t: t.input.wait_ns is not None, "the trace holds no label of a data loader"),
)
