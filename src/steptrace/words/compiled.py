"""What is known of compiled code, in words."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.compilations import BrokenGraph, GuardKind, Recompiled
from steptrace.documents.compiled import CompiledCode, CompiledStep, GraphBreak, Unlowered
from steptrace.documents.estimate import Estimate, PairedDifference
from steptrace.words.estimate import difference_words

#: Most characters of the text of a line or of a guard.
_LONGEST: Final = 200
#: Failed guards that are shown of each piece of code.
_MOST: Final = 5
_UNLOWERED: Final[Mapping[Unlowered, str]] = {
    "release": "kernels are found from PyTorch 2.13 on",
    "names": "this PyTorch lacks names that are needed",
    "ended": "PyTorch's compiler ended its process, or took longer than 5 minutes",
    "not_followed": "Dynamo could not follow it",
    "not_lowered": "Inductor could not lower it",
    "no_operators": "Dynamo makes no graph of it",
    "compiled_autograd": "the whole backward pass is compiled (compiled autograd), which is not followed",
    "backend": "its backend runs its operators one by one",
    "kinds": "it is compiled for more kinds of arguments than PyTorch compiles by default",
}
#: What has changed where a guard fails.
_CHANGED: Final[Mapping[GuardKind, str]] = {
    "size": "the size of {value} in dimension {dimension} changes",
    "stride": "the stride of {value} in dimension {dimension} changes",
    "rank": "the number of dimensions of {value} changes",
    "dtype": "the dtype of {value} changes",
    "device": "the device or layout of {value} changes",
    "requires_grad": "requires_grad of {value} changes",
    "value": "{value} changes",
    "read_value": "a value that was read at a graph break ({value}) changes",
    "module_value": "{value}, a number of a module, changes",
    "learning_rate": "the learning rate {value} changes",
    "training": "the training mode of {value} changes",
    "length": "the length of {value} changes",
    "type": "the type of {value} changes",
    "object": "the object {value} changes",
    "alias": "{value} holds in some calls only",
    "global_state": "PyTorch's setting {value} changes",
    "other": "{value} changes",
}


def compiled_lines(
    compiled: CompiledStep | None,
    instead: Callable[[str, str | None], Sequence[str]] = lambda _kind, _hints: (),
    against: Callable[[GuardKind], Sequence[str]] = lambda _kind: (),
) -> list[str]:
    """The lines on each piece of compiled code; none without compiled code.

    They say its graphs, kernels, graph breaks and recompilations.

    Args:
        compiled: what is known of it.
        instead: says what to write instead of what breaks a graph, for the name of the reason and PyTorch's hints.
        against: says what to do against recompilations, for the kind of the guard.
    """
    if compiled is None:
        return []
    lines = ["  what torch.compile would make of it:" if compiled.is_asked else "  compiled code:"]
    # Code that is compiled for several kinds of arguments often has the same graphs, kernels and breaks each time.
    for (head, *rest), times in Counter(tuple(_code_lines(code)) for code in compiled.codes).items():
        lines += [head if times == 1 else f"{head}, for each of {fmt.count(times)} kinds of arguments", *rest]
    breaks = [graph_break for code in compiled.codes for graph_break in code.breaks if not graph_break.by_pytorch]
    hints = {graph_break.kind: graph_break.hints for graph_break in reversed(breaks)}
    advice = {kind: instead(kind, hints[kind]) for kind in dict.fromkeys(graph_break.kind for graph_break in breaks)}
    lines += [f"    against {kind}: {' '.join(texts)}" for kind, texts in advice.items() if texts]
    kinds = dict.fromkeys(guard.kind for code in compiled.codes for guard in code.recompilations)
    lines += [f"    against recompilations by {kind}: {' '.join(against(kind))}" for kind in kinds if against(kind)]
    return lines


def _code_lines(code: CompiledCode) -> list[str]:
    lines = [code_in_words(code), *(f"      {break_in_words(graph_break)}" for graph_break in code.breaks)]
    lines += [f"      {recompiled_in_words(guard)}" for guard in code.recompilations[:_MOST]]
    if len(code.recompilations) > _MOST:
        lines.append(f"      {len(code.recompilations) - _MOST} more guards that fail: in --json")
    if code.fullgraph and code.breaks:
        lines.append("      it is compiled with fullgraph=True: PyTorch ends the program at the first graph break")
    return lines


def break_in_words(graph_break: GraphBreak | BrokenGraph) -> str:
    """Where a graph breaks, Dynamo's name of the reason, and the line's text."""
    where = "an unknown line" if graph_break.file is None else fmt.place(graph_break.file, graph_break.line)
    what = "graph break of PyTorch's own" if graph_break.by_pytorch else "graph break"
    return f"{what} at {where}: {graph_break.kind}{f': {on_one_line(graph_break.code)}' if graph_break.code else ''}"


def recompiled_in_words(guard: Recompiled) -> str:
    """How often a guard fails, where, and what has changed."""
    times = fmt.plural(guard.recompilations, "recompilation")
    where = fmt.place(guard.file, guard.line)
    if guard.guard is not None:
        return f"{times} at {where}: {guard_in_words(guard.guard)}"
    return f"{times} at {where}: {change_in_words(guard.kind, guard.value, guard.dimension, guard.before, guard.now)}"


def guard_in_words(guard: str) -> str:
    """The clause that a guard has failed, with the guard as PyTorch writes it."""
    return f"the guard `{on_one_line(guard)}` failed"


def change_in_words(
    kind: GuardKind, value: str, dimension: int | None, before: str | None = None, now: str | None = None
) -> str:
    """What has changed where a guard is predicted to fail; the arguments are the fields of `Recompiled`."""
    changed = _CHANGED[kind].format(value=f"`{on_one_line(value)}`", dimension=dimension)
    if before is None or now is None:
        return changed
    return f"{changed} from {on_one_line(before)} to {on_one_line(now)}"


def on_one_line(text: str) -> str:
    """A text of the program on one line, and clipped."""
    return fmt.clipped(" ".join(text.split()), _LONGEST)


def code_in_words(code: CompiledCode) -> str:
    """The line on a piece of compiled code: its graphs and kernels, or why they are not known."""
    where = "no line of the program" if code.file is None else f"{code.file}:{code.line}"
    if code.kernels is None:
        detail = "" if code.reason is None else f" ({code.reason})"
        known = "runs uncompiled" if code.is_known else "kernels not known"
        return f"    {where}: {known}: {'' if code.unlowered is None else _UNLOWERED[code.unlowered]}{detail}"
    forward, backward = len(code.kernels.forward), len(code.kernels.backward)
    graphs = "the same graphs at another size" if code.shares_graphs else fmt.plural(code.graphs, "graph")
    kernels = f"{fmt.count(forward)} kernels forward" + (f", {fmt.count(backward)} backward" if backward else "")
    return f"    {where}: {graphs}, {kernels}"


def compiled_estimate_lines(name: str, estimate: Estimate) -> list[str]:
    """The lines on what compiling changes in an estimated step. `name` names the GPU and the batch."""
    compiled = estimate.compiled
    if compiled is not None and compiled.step_ms is not None and compiled.launches is not None:
        step = fmt.band_ms(*compiled.step_ms) + (
            f" ({_band(estimate)} uncompiled)" if estimate.uncompiled_ms is not None else ""
        )
        launches = f"{fmt.count(compiled.launches)} launches in place of {fmt.count(compiled.launches_uncompiled)}"
        memory = compiled.peak_memory_bytes
        about = "" if memory is None else f", about {fmt.size_bytes(memory)} of memory"
        return [
            f"    {name}, compiled: step {step}, {launches}{about}",
            f"    {name}, compiled against uncompiled: {_difference(compiled.difference)}",
        ]
    if estimate.fused_ms is None or estimate.uncompiled_ms is None:
        return []
    lowest = f"{fmt.band_ms(*estimate.fused_ms)} (all but products, convolutions and attention fused away)"
    return [f"    {name}, compiled: between {lowest} and {_band(estimate)} (uncompiled)"]


def compiled_words(estimate: Estimate) -> str | None:
    """What compiled code changes in a step, for a table; None if the step has none."""
    compiled = estimate.compiled
    if compiled is not None:
        launches = f"{fmt.count(compiled.launches)} launches, uncompiled {fmt.count(compiled.launches_uncompiled)}"
        graphs = fmt.plural(compiled.graphs, "graph")
        return f"{graphs}; {launches}; {_difference(compiled.difference)}" if compiled.launches is not None else graphs
    if estimate.fused_ms is None or estimate.uncompiled_ms is None:
        return None
    return f"between {fmt.band_ms(*estimate.fused_ms)} (fused as far as possible) and {_band(estimate)} (uncompiled)"


def _band(estimate: Estimate) -> str:
    return "" if estimate.uncompiled_ms is None else fmt.band_ms(*estimate.uncompiled_ms)


def _difference(pair: PairedDifference) -> str:
    low, high = map(fmt.factor, pair.times_as_fast)
    return difference_words(pair, f"{low} to {high} times as fast")
