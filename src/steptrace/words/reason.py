"""Why a step takes as long as it does, in a sentence."""

from pathlib import Path
from typing import Final

from steptrace import format as fmt
from steptrace.documents.overview import part_name
from steptrace.documents.reason import Reason
from steptrace.limits import NOISE_FLOOR
from steptrace.words.codes import GPU_SPAN, HOST_ACTIVITIES

#: The questions that the page of one trace, and the page of several, answers.
QUESTION: Final = "Where does a step's time go, and what makes it long?"
QUESTION_OF_RANKS: Final = "Do the ranks keep step, and what holds them up?"
#: The heading of the folded tables.
MORE_TABLES: Final = "All other tables"


def reason_text(reason: Reason) -> str:
    """One sentence on the largest part of a step."""
    whole = "the step" if reason.per_step else GPU_SPAN
    return f"{_clause(reason, f'{fmt.share(reason.share)} of {whole}')}."


def _clause(reason: Reason, share: str) -> str:
    match reason.kind:
        case "kernels":
            return f"Kernels set the pace: they compute in {share}{_most(reason)}"
        case "communication":
            waiting = (
                "" if reason.wait_share is None else f"; {fmt.share(reason.wait_share)} of it waits for other ranks"
            )
            return f"Communication that no computation hides takes {share}{_most(reason)}{waiting}"
        case "copies":
            return f"Copies and memsets that no kernel hides take {share}{_most(reason)}"
        case "data":
            return f"The GPU waits for data: it is idle in {share} while the host waits for its data loader"
        case "syncs":
            site = "" if reason.name is None else f", most of it for `{reason.name}`"
            return (
                "Syncs keep the host from launching ahead: they cost up to "
                f"{share}{site}{_place(reason, ' at ' if site else ', most of it at ')}"
            )
        case "host":
            idle = f"{share}{_after_syncs(reason)}"
            return f"The host launches too slowly: the GPU has nothing to do for {idle}{_launching(reason)}"
        case "gaps":
            return f"Kernels are short: the gaps between them take {share}{_short(reason)}"
        case "dependency":
            return f"Streams wait for each other: the GPU is idle in {share}, its next work waiting for an event"
        case "host_part":
            name = "one part" if reason.name is None else part_name(reason.name)
            return f"The longest part of the host's time is {name}: it takes {share}"


def _most(reason: Reason) -> str:
    """The name that takes most of the part, and the line that causes most of the GPU's work."""
    if reason.name is None:
        return _place(reason, ", most of it from ")
    of_what = " of the summed kernel time" if reason.overlaps else ""
    alone = "" if reason.name_share is None else f" ({fmt.share(reason.name_share)}{of_what})"
    return f", most of all in `{reason.name}`{alone}{_place(reason, '; the line that launches most is ')}"


def _place(reason: Reason, before: str) -> str:
    return "" if reason.file is None else f"{before}{fmt.place(Path(reason.file).name, reason.line)}"


def _after_syncs(reason: Reason) -> str:
    """The part of the idle time that follows syncs, and what they cost, where a page's shares show it."""
    if reason.after_syncs < NOISE_FLOOR:
        return ""
    cost = "nothing" if reason.syncs_cost == 0 else f"at most {fmt.share(reason.syncs_cost)}"
    return f" ({fmt.share(reason.after_syncs)} after syncs, which cost {cost})"


def _launching(reason: Reason) -> str:
    """What the host mostly does meanwhile, and how much GPU work a step has."""
    meanwhile = "" if reason.meanwhile is None else f", mostly while the host is {HOST_ACTIVITIES[reason.meanwhile]}"
    if reason.busy_ns is None:
        return meanwhile
    whole = "a step" if reason.per_step else GPU_SPAN
    return (
        f"{meanwhile}; {whole} of {fmt.duration_ns(reason.step_ns)} has {fmt.duration_ns(reason.busy_ns)} of GPU work"
    )


def _short(reason: Reason) -> str:
    if not reason.kernels or reason.busy_ns is None:
        return ""
    mean = fmt.duration_ns(reason.busy_ns / reason.kernels)
    return f"; {fmt.plural(round(reason.kernels), 'kernel')} run for {mean} each on average"
