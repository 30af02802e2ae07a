"""All traces of a summary side by side, and what their ranks say together."""

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Final

from steptrace import format as fmt
from steptrace.documents.ranks import Ranks
from steptrace.documents.steps import measured_figures
from steptrace.report.page.markup import Html, breakable, definitions
from steptrace.report.page.rows import facts, listing
from steptrace.report.page.section import Explained, Parts, note, subheading
from steptrace.report.page.table import Figure, figures_table
from steptrace.report.trace.view import TraceView
from steptrace.words.notes import ranks_read

#: The most ranks whose least waiting is named.
_MOST_RANKS: Final = 8
#: Explained below the table of all traces.
_TERMS: Final = (
    "GpuTime.exposed_comm_ns",
    "Overview.exposed_wait_ns",
    "GpuTime.overlap_pct",
    "Quality.launch_coverage",
)


def side_by_side(by_id: Mapping[str, TraceView], sections: Collection[str]) -> Explained:
    """Every trace in a row: its device, and what can be compared.

    Args:
        by_id: the traces by the ids of their sections.
        sections: the ids that the page has.
    """

    def figure(heading: str, value_of: Callable[[TraceView], float | str | None], unit: str | None = None) -> Figure:
        return Figure(heading, {id_: value_of(view) for id_, view in by_id.items()}, unit)

    table = figures_table(
        "Trace",
        {
            id_: Html('<a href="#{}">{}</a>').format(id_, breakable(view.title))
            if id_ in sections
            else breakable(view.title)
            for id_, view in by_id.items()
        },
        [
            figure(
                "Device", lambda view: view.trace.device_name or ("GPU without a name" if view.has_gpu else "no GPU")
            ),
            figure("Profiled step", lambda view: view.step_ms, "ms"),
            *(
                figure(step_figure.heading, attrgetter(f"trace.{step_figure.name}"), step_figure.unit)
                for step_figure in measured_figures(*(view.trace for view in by_id.values()))
            ),
            figure("Exposed communication", _exposed, "share"),
            figure("Exposed waiting", _exposed_wait, "share"),
            figure("Communication hidden", lambda view: view.trace.gpu.overlap_pct, "%"),
            figure("Syncs per step", lambda view: view.trace.syncs.per_step),
            figure("GPU work with its launch", lambda view: view.trace.quality.launch_coverage, "share"),
        ],
    )
    return Explained(table, definitions(_TERMS))


def _exposed(view: TraceView) -> float | None:
    """Communication that no computation hides, as a share of the steps; without steps, of the GPU's span."""
    overview = view.trace.overview
    exposed_ns = None if overview is None else overview.known_ns.get("exposed_comm")
    if overview is None or exposed_ns is None or view.trace.gpu.exposed_comm_ns is None or not overview.window_ns:
        return None
    return exposed_ns / overview.window_ns


def _exposed_wait(view: TraceView) -> float | None:
    """Waiting for other ranks without computation, as a share of the steps; without steps, of the GPU's span."""
    overview = view.trace.overview
    if overview is None or overview.exposed_wait_ns is None or not overview.window_ns:
        return None
    return overview.exposed_wait_ns / overview.window_ns


def rank_sections(
    ranks: Ranks, steps: int, shown: Collection[int | None] | None = None
) -> list[tuple[str, str, Parts]]:
    """Id, heading and parts of each section on all ranks.

    Args:
        ranks: what they say together.
        steps: sums are over so many steps; 0: not known.
        shown: the ranks that tables of single ranks show; None: all.
    """
    sections: list[tuple[str, str, Parts]] = []
    if any(row.collectives for row in ranks.waits):
        sections.append(("waits", "Which rank the others wait for", _waits(ranks, steps, shown)))
    if ranks.kernels:
        sections.append(("rank_kernels", "Kernels across ranks", [listing(ranks.kernels, most=15, steps=steps)]))
    return sections


def _waits(ranks: Ranks, steps: int, shown: Collection[int | None] | None) -> list[Explained]:
    matches = ranks.collectives
    reduced = ranks.all_reduce
    all_reduces = [] if reduced is None else [subheading("All-reduces per step, median over the ranks"), facts(reduced)]
    if not matches.matched:
        return [note("Not measured: no collective ran on more than one of these traces."), *all_reduces]
    none = note("No straggler: no rank causes clearly more than its share of the waiting.")
    if not any(row.complete for row in ranks.waits):
        none = note("Straggler not measured: no collective ran only on ranks whose traces were read.")
    how = {
        "order": "by size and order, since the host's have no numbers",
        "time": "by time, since the traces do not number them",
    }
    by = "".join(
        f", {count} of them {how[name]}" for name, count in matches.matched_by.items() if count and name in how
    )
    counted = (
        f"{matches.matched} of {matches.total} collectives were matched across ranks{by}; the others are left out."
    )
    return [
        *([note(f"{ranks_read(ranks.count, ranks.count + ranks.not_read)}.")] if ranks.not_read else []),
        none if ranks.straggler is None else facts(ranks.straggler, steps=steps),
        *_least_waits(ranks, steps),
        listing([row for row in ranks.waits if shown is None or row.rank in shown] or ranks.waits, steps=steps),
        Explained(listing(matches.by_name, steps=steps).html),
        note(counted),
        Explained("", definitions(["RankCollectives.matched"])),
        *all_reduces,
    ]


def _least_waits(ranks: Ranks, steps: int) -> list[Explained]:
    """How long ranks wait for those that were read, the longest first, where others were not read."""
    rows = sorted((row for row in ranks.waits if row.least_wait_ns), key=lambda row: -(row.least_wait_ns or 0))
    if not rows:
        return []
    waits = [f"rank {row.rank} {fmt.duration((row.least_wait_ns or 0) / (steps or 1))}" for row in rows[:_MOST_RANKS]]
    per = " per step" if steps else ""
    return [note(f"Waiting for the ranks that were read, at least{per}: {fmt.enumeration(waits)}.")]
