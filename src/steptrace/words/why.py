"""Why a variant is faster, in one sentence made from the largest difference of a step's parts."""

from collections.abc import Callable, Mapping
from typing import Final

from steptrace import format as fmt
from steptrace.documents.answer import Counted, Fewer, WhyFaster
from steptrace.documents.overview import part_name
from steptrace.documents.why import Saving, Why

#: The most kernels that are named.
_MOST_KERNELS: Final = 2
#: The sentence gives a part's share of the saved time if it is less than this.
_NEARLY_ALL: Final = 0.95


def why_in_words(reason: WhyFaster) -> str:
    """The largest part of the difference, with what stands behind it; empty where no profile says it."""
    if reason.why is None or not reason.why.shorter:
        return ""
    reasons = reason.why
    largest = reason.why.shorter[0]
    say = _OF_PART.get(largest.part, _of_any_part)
    text = say(largest, reason) + _of_the_saving(largest, reasons)
    fewer = _counted(reason, "syncs")
    if largest.part != "idle_sync" and not reasons.by_syncs and reasons.syncs_ns is not None and fewer is not None:
        gone = fewer.before - fewer.now
        is_or_are = "is" if gone == 1 else "are"
        text += f". The {fmt.plural(gone, 'sync')} per step that {is_or_are} gone cost at most "
        text += fmt.duration_ns(reasons.syncs_ns)
    return f"{text}."


def _counted(reason: WhyFaster, what: Counted) -> Fewer | None:
    return next((row for row in reason.fewer if row.what == what), None)


def _of_the_saving(largest: Saving, reasons: Why) -> str:
    """The part's share of the whole difference, if it is not nearly all of it."""
    if largest.ns >= _NEARLY_ALL * reasons.saved_ns:
        return ""
    return f" ({fmt.share(largest.ns / reasons.saved_ns)} of the difference)"


def _kernels(largest: Saving, _: WhyFaster) -> str:
    text = f"its GPU kernels take {fmt.duration_ns(largest.ns)} less per step"
    named = [f"`{kernel.name}` {fmt.duration_ns(kernel.ns)}" for kernel in largest.kernels[:_MOST_KERNELS]]
    return f"{text}, most of it in {fmt.enumeration(named)}" if named else text


def _host(largest: Saving, reason: WhyFaster) -> str:
    text = f"the GPU waits {fmt.duration_ns(largest.ns)} less per step for the host to launch work"
    fewer = _counted(reason, "kernels")
    return text if fewer is None else f"{text}: {fmt.count(fewer.now)} kernels instead of {fmt.count(fewer.before)}"


def _syncs(largest: Saving, reason: WhyFaster) -> str:
    text = f"the GPU is idle {fmt.duration_ns(largest.ns)} less per step after syncs"
    fewer = _counted(reason, "syncs")
    return text if fewer is None else f"{text}: {fmt.plural(fewer.now, 'sync')} instead of {fmt.count(fewer.before)}"


def _data(largest: Saving, _: WhyFaster) -> str:
    return f"the GPU waits {fmt.duration_ns(largest.ns)} less per step for data"


def _host_data(largest: Saving, _: WhyFaster) -> str:
    return f"the host waits {fmt.duration_ns(largest.ns)} less per step for data"


def _of_any_part(largest: Saving, _: WhyFaster) -> str:
    return f"{part_name(largest.part)} takes {fmt.duration_ns(largest.ns)} less per step"


_OF_PART: Final[Mapping[str, Callable[[Saving, WhyFaster], str]]] = {
    "compute": _kernels,
    "idle_host": _host,
    "idle_sync": _syncs,
    "idle_loader": _data,
    "data": _host_data,
}
