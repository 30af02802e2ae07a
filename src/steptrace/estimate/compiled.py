"""The queue of a step with compiled code: the compiled kernels replace the operators recorded in the prediction."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from steptrace.documents.compiled import FIRST_CALL
from steptrace.documents.estimate import SYNC, OperatorCalls
from steptrace.estimate import kernel_classes
from steptrace.estimate.collectives import collective_of
from steptrace.estimate.queue import Collective, GraphLaunch, Item, Join, Sync, stream_wait_of, with_joins
from steptrace.estimate.work import Kernel, kernels_of

if TYPE_CHECKING:
    from steptrace.documents.prediction import PredictedStep

#: The prefix of kernels that Inductor generates, and their classes.
_GENERATED: Final = "inductor."
_CLASSES: Final = {
    "inductor.pointwise": kernel_classes.ELEMENTWISE,
    "inductor.reduction": kernel_classes.FUSED_REDUCTION,
}
#: Waits for a collective of the same graph.
_WAIT: Final = "wait_tensor"
#: The classes of kernels among which `max-autotune` chooses.
_TUNABLE: Final = (kernel_classes.PRODUCT, kernel_classes.BATCHED_PRODUCT)


def kernels_of_call(
    call: OperatorCalls, *, tf32: bool, tf32_convolutions: bool, compiled: bool = False, tuned: bool = False
) -> tuple[Kernel, ...]:
    """The kernels of one call: of an operator or, with `compiled`, of a call in compiled code.

    With `tuned`, products of compiled code are the quickest of several kernels (`max-autotune`).
    """
    if call.name.startswith(_GENERATED):
        moved = float(call.arguments["read"] + call.arguments["written"])
        return (Kernel(kind=_CLASSES[call.name], bytes=moved, shape=f"{call.name} {moved:.0f}"),)
    kernels = kernels_of(call, tf32=tf32_convolutions if kernel_classes.is_convolution(call) else tf32)
    if not compiled:
        return kernels
    # Inductor pads the operands of misaligned products.
    padded = (
        replace(kernel, kind=kernel_classes.PRODUCT) if kernel.kind == kernel_classes.MISALIGNED else kernel
        for kernel in kernels
    )
    return tuple(replace(kernel, tuned=tuned and kernel.kind in _TUNABLE) for kernel in padded)


def compiled_items(prediction: "PredictedStep") -> tuple[Item, ...]:
    """The queue of a prediction's steps with compiled code; empty if there is none, or if part of it is not known."""
    followed = prediction.followed
    compiled = prediction.followed.compiled
    if compiled is None or not all(code.is_known for code in compiled.codes):
        return ()
    flags = {"tf32": prediction.tf32, "tf32_convolutions": prediction.tf32_convolutions}
    several = max(prediction.devices, len(prediction.by_rank)) > 1
    of_operators = [_items_of_operator(call, several=several, **flags) for call in followed.operator_calls]
    of_calls: list[tuple[Item, ...]] = []
    for code in compiled.codes:
        for calls in ((), ()) if code.kernels is None else (code.kernels.forward, code.kernels.backward):
            items = _items_of_code(calls, several=several, tuned=code.tunes, **flags)
            of_calls.append(_as_graphs(items) if code.cuda_graphs else tuple(items))
    sent = {place for place, items in enumerate(of_operators) if any(isinstance(item, Collective) for item in items)}

    def entries() -> Iterator[tuple[Sequence[Item], bool]]:
        for place, share in _with_overlap(compiled.queue, sent):
            if place == SYNC:
                yield (Sync(),), True
            elif place < 0:
                launched = of_calls[FIRST_CALL - place]
                first, last = (round(end * len(launched)) for end in share)
                yield launched[first:last], True
            else:
                yield of_operators[place], followed.operator_calls[place].phase == "backward"

    return tuple(with_joins(entries()))


def _items_of_code(
    calls: Sequence[OperatorCalls], *, several: bool, tuned: bool, tf32: bool, tf32_convolutions: bool
) -> Iterator[Item]:
    """What a graph of compiled code launches. Its collectives run beside its kernels until the graph waits for them."""
    for call in calls:
        kernels = kernels_of_call(call, tf32=tf32, tf32_convolutions=tf32_convolutions, compiled=True, tuned=tuned)
        if all(kernel.kind != kernel_classes.COLLECTIVE for kernel in kernels):
            yield from kernels
        elif several and kernel_classes.base_name(call.name) == _WAIT:
            yield Join()
        elif several and (sent := collective_of(call)) is not None:
            # Unlike FSDP's hooks, which gather ahead of time, a graph may gather what its kernels have made.
            yield replace(sent, after_kernels=True)


def _as_graphs(items: Iterable[Item]) -> tuple[Item, ...]:
    """The same with the kernels between two collectives launched as one CUDA graph."""
    result: list[Item] = []
    kernels: list[Kernel] = []
    for item in (*items, None):
        if isinstance(item, Kernel):
            kernels.append(item)
            continue
        if kernels:
            result.append(GraphLaunch(kernels=tuple(kernels)))
            kernels = []
        if item is not None:
            result.append(item)
    return tuple(result)


def _items_of_operator(call: OperatorCalls, *, several: bool, tf32: bool, tf32_convolutions: bool) -> tuple[Item, ...]:
    if wait := stream_wait_of(call):
        return (wait,)
    kernels = kernels_of_call(call, tf32=tf32, tf32_convolutions=tf32_convolutions)
    if all(kernel.kind != kernel_classes.COLLECTIVE for kernel in kernels):
        return kernels
    sent = collective_of(call) if several else None
    return () if sent is None else (sent,)


#: A queue entry, and which of its kernels are launched: from a share to a share, (0, 1) for all of them.
_Part = tuple[int, tuple[float, float]]
_WHOLE: Final = (0.0, 1.0)


def _with_overlap(queue: Sequence[int], collectives: Collection[int]) -> Iterator[_Part]:
    """The queue with the collectives after a compiled backward pass spread evenly over that pass.

    DistributedDataParallel sends each bucket of gradients as soon as it is computed; for this, Dynamo ends a graph at
    the end of each bucket. The last bucket is sent after the pass.
    """
    place = 0
    while place < len(queue):
        entry = queue[place]
        place += 1
        if entry > FIRST_CALL or (FIRST_CALL - entry) % 2 == 0:
            yield entry, _WHOLE
            continue
        end = place
        while end < len(queue) and queue[end] in collectives:
            end += 1
        sent = queue[place:end]
        parts = max(len(sent), 1)
        for number in range(parts):
            yield entry, (number / parts, (number + 1) / parts)
            yield from ((collective, _WHOLE) for collective in sent[number : number + 1])
        place = end


def compiled_peak(prediction: "PredictedStep") -> int | None:
    """The approximate peak memory of a step with compiled code, in bytes; None if the uncompiled peak is unknown.

    Memory peaks between the forward and the backward pass. Compiled code keeps fewer bytes for the backward pass, since
    it recomputes some values and never writes others. The difference is subtracted from the uncompiled peak, for as
    many calls as keep something at once: with gradient accumulation a call's backward pass comes before the next call.
    """
    peak = prediction.peak_memory_bytes
    compiled = prediction.followed.compiled
    if peak is None or compiled is None:
        return peak
    saved = {
        FIRST_CALL - 2 * place: code.kept_bytes_uncompiled - code.kept_bytes
        for place, code in enumerate(compiled.codes)
        if code.kernels is not None and code.kept_bytes is not None and code.kept_bytes_uncompiled is not None
    }
    return max(peak - _most_at_once(compiled.queue, saved), 0)


def _most_at_once(queue: Sequence[int], saved: Mapping[int, int]) -> int:
    """What calls save that have run and whose backward passes have not, where that is most.

    Args:
        queue: see `CompiledStep.queue`.
        saved: by the entry of a code's calls, the bytes that one call saves.
    """
    entries = frozenset(queue)
    kept = most = 0
    for entry in queue:
        during = kept
        if entry in saved:
            during += saved[entry]
            if entry - 1 in entries:  # its backward pass; without one, nothing is kept after the call
                kept = during
        elif entry + 1 in saved:
            kept -= saved[entry + 1]
        most = max(most, during, key=abs)
    return most
