"""What a rank communicated, and what of it computation did not hide."""

from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Topic, unless

_TERMS = (
    Definition(
        "Exposed communication",
        "Of a collective's length, the time without a compute kernel on any stream of the GPU; of one that the host "
        "carries out (gloo), without an operator on a thread that does training work. Collectives that run at once "
        "each count theirs, so these can add up to more than the GPU's exposed communication.",
    ),
    Definition(
        "Collective",
        "What PyTorch calls it on the kernel or on the operator around its launch, or else what the kernel's name "
        "says; on a host, PyTorch's label around it. Its length includes waiting for other ranks.",
    ),
    Definition(
        "All-reduces, measured and exposed",
        "Over the profiled steps, each instant with one under way counted once; exposed is what of it no computation "
        "hid.",
        Definition(
            "All-reduces, measured and exposed",
            "Each instant with one under way counted once; exposed is what of it no computation hid.",
        ),
    ),
)

TOPIC = Topic(
    "collectives",
    "Communication",
    _TERMS,
    unmeasured=unless(lambda t: t.collectives, "the trace holds neither GPU activity nor a collective of the host"),
    nothing=unless(lambda t: t.collectives and t.collectives.count, "the trace holds no collective"),
)
