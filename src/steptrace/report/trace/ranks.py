"""What a page of several traces says of them together."""

from steptrace.documents.summary import Ranks
from steptrace.report.page.definitions import definitions
from steptrace.report.page.markup import render
from steptrace.report.page.parts import Explained, Parts, note
from steptrace.report.page.table import listing

_TERMS = ("Straggler.rank", "RankCollectives.matched", "Communication.expected_ns")


def rank_sections(ranks: Ranks, steps: int) -> list[tuple[str, str, Parts]]:
    """Id, heading and parts of each section on all ranks; sums are over so many steps, 0: not known."""
    sections: list[tuple[str, str, Parts]] = []
    if any(row.collectives for row in ranks.waits):
        sections.append(("waits", "Which rank the others wait for", _waits(ranks, steps)))
    if ranks.kernels:
        sections.append(("rank_kernels", "Kernels across ranks", [listing(ranks.kernels, most=15, steps=steps)]))
    return sections


def _waits(ranks: Ranks, steps: int) -> list[Explained]:
    of = ranks.collectives
    parts = [Explained(render("trace/waits", s=ranks.straggler, matched=of.matched, reduced=ranks.all_reduce))]
    if not of.matched:
        return parts
    how = {
        "order": "by size and order, since the host's have no numbers",
        "time": "by time, since the traces do not number them",
    }
    by = "".join(f", {count} of them {how[name]}" for name, count in of.matched_by.items() if count and name in how)
    counted = f"{of.matched} of {of.total} collectives were matched across ranks{by}; the others are left out."
    return [
        *parts,
        listing(ranks.waits, steps=steps),
        Explained(listing(of.by_name, steps=steps).html),
        note(counted),
        Explained("", definitions(_TERMS)),
    ]
