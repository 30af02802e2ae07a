"""What a page of several traces says of them together."""

from steptrace.documents.ranks import Ranks
from steptrace.report.page.definitions import definitions
from steptrace.report.page.parts import Explained, Parts, note, subheading
from steptrace.report.page.table import facts, listing


def rank_sections(ranks: Ranks, steps: int) -> list[tuple[str, str, Parts]]:
    """Id, heading and parts of each section on all ranks; sums are over so many steps, 0: not known."""
    sections: list[tuple[str, str, Parts]] = []
    if any(row.collectives for row in ranks.waits):
        sections.append(("waits", "Which rank the others wait for", _waits(ranks, steps)))
    if ranks.kernels:
        sections.append(("rank_kernels", "Kernels across ranks", [listing(ranks.kernels, most=15, steps=steps)]))
    return sections


def _waits(ranks: Ranks, steps: int) -> list[Explained]:
    of, reduced = ranks.collectives, ranks.all_reduce
    all_reduces = [] if reduced is None else [subheading("All-reduces per step, median over the ranks"), facts(reduced)]
    if not of.matched:
        return [note("Not measured: no collective ran on more than one of these traces."), *all_reduces]
    none = note("No straggler: no rank causes clearly more than its share of the waiting.")
    how = {
        "order": "by size and order, since the host's have no numbers",
        "time": "by time, since the traces do not number them",
    }
    by = "".join(f", {count} of them {how[name]}" for name, count in of.matched_by.items() if count and name in how)
    counted = f"{of.matched} of {of.total} collectives were matched across ranks{by}; the others are left out."
    return [
        none if ranks.straggler is None else facts(ranks.straggler, steps=steps),
        listing(ranks.waits, steps=steps),
        Explained(listing(of.by_name, steps=steps).html),
        note(counted),
        Explained("", definitions(["RankCollectives.matched"])),
        *all_reduces,
    ]
