"""What a rank communicated, and what of it computation did not hide."""

from steptrace.report.definitions import Definition
from steptrace.report.topics.model import Topic

_TERMS = (
    Definition(
        "Exposed communication",
        "Of a collective's length, the time without a compute kernel on any stream of the GPU. Collectives that run at "
        "once each count theirs, so these can add up to more than the GPU's exposed communication.",
    ),
    Definition(
        "Collective",
        "What PyTorch calls it on the kernel or on the operator around its launch, or else what the kernel's name "
        "says. Its length includes waiting for other ranks.",
    ),
)

TOPIC = Topic("collectives", "Communication", _TERMS)
