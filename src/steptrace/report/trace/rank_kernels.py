"""How differently the same kernel ran on the ranks."""

from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import RankTopic

_TERMS = (
    Definition(
        "Mean length",
        "Of one kernel on one rank; least, median and greatest over the ranks that ran it. A rank whose kernels are "
        "all longer has a slower GPU; one that is longer in a few has other data. A collective's length holds its "
        "waiting, so there the rank with the shortest is the one waited for.",
    ),
)


TOPIC = RankTopic("rank_kernels", "Kernels across ranks", _TERMS, shown=lambda ranks: bool(ranks.kernels))
