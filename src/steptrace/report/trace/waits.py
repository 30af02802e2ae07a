"""Which rank the others waited for."""

from steptrace import format as fmt
from steptrace.documents.summary import Ranks
from steptrace.report.draw import bars as draw
from steptrace.report.draw.bars import Part
from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Charts, RankTopic

_TERMS = (
    Definition(
        "Wait",
        "From a rank's arrival in a collective (its kernel's start, on a host its label's) to the arrival of the last "
        "rank. All of it is caused by the rank that was last.",
    ),
    Definition(
        "Delay",
        "How much sooner the collectives in which a rank was last could have begun, had it come with the second-last.",
    ),
    Definition(
        "Straggler",
        "The rank whose share of all waiting caused is more than half way from an even share to all of it (three "
        "quarters with two ranks, little over half with many), by delays that stand out of the clocks' uncertainty; "
        "none if there is no such rank.",
    ),
    Definition(
        "Matching",
        "A collective is found on several ranks by its process group and number. One that the host carries out (gloo) "
        "is the n-th of its size in its step, as ranks must ask for them in one order. Where a trace holds no numbers, "
        "by time: the ranks' activities have an instant in common and end together.",
    ),
    Definition(
        "Expected all-reduce",
        "Parameter bytes × 2(n−1)/n ÷ the bus bandwidth that the run measured by all-reduces alone, for n ranks. The "
        "simpler formula is parameters × 4 bytes ÷ bandwidth. Known for runs recorded here.",
    ),
    Definition(
        "Clock",
        "Ranks' clocks differ. They are aligned by the ends of collectives, which all ranks leave at about the same "
        "time; the uncertainty is half the spread of what the offset is the median of. A wait below it is noise.",
    ),
)


def _charts(ranks: Ranks) -> Charts:
    rows = [
        (f"rank {row.rank}", [Part("exposed_comm", row.wait_ns / fmt.NS_PER_MS)])
        for row in ranks.waits
        if row.wait_ns is not None
    ]
    return {"waits": draw.one_part(rows, "ms waited for other ranks") if rows else None}


TOPIC = RankTopic(
    "waits",
    "Which rank the others wait for",
    _TERMS,
    _charts,
    lambda ranks: any(row.collectives for row in ranks.waits),
)
