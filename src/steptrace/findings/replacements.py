"""What usually stands in for an operation that makes the host wait, and when that does not pay."""

import re
from collections.abc import Mapping
from typing import Final

from steptrace.documents.batch_copy import is_batch_copy
from steptrace.documents.comparison import PredictedSite

#: By the operator's name.
REPLACEMENTS: Final[Mapping[str, str]] = {
    "aten::nonzero": "Keep the mask as a tensor: torch.where(mask, a, b) with all three arguments, or multiply by "
    "it. With one argument, torch.where waits as nonzero does.",
    "aten::index": "Keep the full shape: an ignore_index, torch.where(mask, a, b), or a multiplication by the mask. "
    "A boolean index makes a result whose size only the GPU knows.",
    "aten::index_put_": "Write by torch.where(mask, a, b) or masked_fill_. Assignment through a boolean mask looks "
    "for its true elements first.",
    "aten::masked_select": "Keep the full shape and multiply by the mask. The result's size is known only to the GPU.",
    "aten::item": "Keep the value on the device; read it after the step, or once in many steps.",
    "aten::_local_scalar_dense": "Keep the value on the device (an `if`, float() or .item() reads it); use torch.where "
    "instead of a branch, and read values for a log once in many steps.",
    "aten::is_nonzero": "Let torch.where(condition, a, b) choose on the device, instead of a branch on its value.",
    "aten::equal": "Compare with torch.eq and keep the result on the device.",
    "aten::_unique2": "Sort and count the changes instead. The number of distinct values is known only to the GPU.",
    "aten::unique_consecutive": "Count the changes instead. The number of distinct values is known only to the GPU.",
    "aten::unique_dim": "Sort and count the changes instead. The number of distinct rows is known only to the GPU.",
    "aten::repeat_interleave": "Pass output_size, so that the result's size need not be read back.",
    "aten::bincount": "Pass the result's size by another way: torch.zeros(n).index_add_ or scatter_add_.",
    "aten::one_hot": "Pass num_classes, so that the largest class need not be read back.",
    "aten::multinomial": "Sample on the device: argmax over probabilities divided by exponential noise draws the same.",
    "aten::linalg_inv_ex": "Call the _ex form with check_errors=False, and look at its info once in many steps.",
    "aten::copy_": "Copy with non_blocking=True. What comes from the host must lie in pinned memory "
    "(DataLoader(pin_memory=True)). What goes to the host may be read only later, when an event says that it is there.",
    "aten::_to_copy": "Copy with non_blocking=True out of pinned memory (DataLoader(pin_memory=True)), or make the "
    "tensor on the device in the first place.",
    "aten::to": "Copy with non_blocking=True out of pinned memory, or make the tensor on the device.",
}

#: By the kind of the synchronisation, for one under no operator above.
BY_KIND: Final[Mapping[str, str]] = {
    "h2d_copy": REPLACEMENTS["aten::_to_copy"],
    "d2h_copy": "Keep the value on the device; what must be read on the host is copied with non_blocking=True and read "
    "a step later.",
    "DeviceSynchronize": "Take the synchronisation out of the step: nothing in training needs it. To time a part, "
    "record CUDA events and read them after the step.",
    "StreamSynchronize": "Let the other stream wait (Stream.wait_stream or wait_event) instead of the host.",
    "EventSynchronize": "Let the other stream wait (Stream.wait_event) instead of the host, or ask Event.query() "
    "and go on.",
}

#: The loop may be the pipeline's own: then its configuration is what can be changed.
OF_BATCH_COPY: Final = (
    "Pin the batches and do not wait for the copy: DataLoader(pin_memory=True) and to(device, non_blocking=True). In a "
    "study's configuration: data.pin_memory=true with data.non_blocking=true."
)

#: DistributedDataParallel reads its own timing events at the begin of these steps, whatever the program does.
OF_DDP_TIMING: Final = (
    "This is DistributedDataParallel's own: it reads its timing events in the first 10 steps and in every 100th after "
    "them. Profile later steps; nothing in the program has to change."
)
_DDP_LABEL: Final = "DistributedDataParallel.forward"

_MASKS: Final = frozenset({"aten::nonzero", "aten::index", "aten::index_put_", "aten::masked_select"})
_SORTED: Final = frozenset({"aten::_unique2", "aten::unique_consecutive", "aten::unique_dim"})
_COPIES: Final = frozenset({"aten::copy_", "aten::_to_copy", "aten::to"})
_VALUES: Final = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"})

_UNIQUE: Final = re.compile(r"\bunique(_consecutive)?\(")

_MOVES: Final = (
    "Replace it alone and measure again: the sync must be gone and the step faster. If the wait turns up at the next "
    "sync instead, nothing was gained; while the GPU is busy all the same, a wait costs nothing."
)


def operation(site: PredictedSite) -> str:
    """The operator that the program called: a boolean index looks for its true elements by `aten::nonzero`.

    The operators of `unique` read the number of distinct values as `item` does, under its name.
    """
    op, code = site.op or "", site.code or ""
    if op in _VALUES and _UNIQUE.search(code):
        return "aten::unique_consecutive" if "unique_consecutive" in code else "aten::_unique2"
    return "aten::index" if op == "aten::nonzero" and "[" in code and "nonzero" not in code else op


def replacement(site: PredictedSite) -> str | None:
    """The usual replacement of the operation at a site; None if there is no usual one."""
    if is_batch_copy(site):
        return OF_BATCH_COPY
    if _is_ddp_timing(site):
        return OF_DDP_TIMING
    found = REPLACEMENTS.get(operation(site))
    if found is not None:
        return found
    kind = site.kind or ""
    return next((text for name, text in BY_KIND.items() if kind.endswith(name)), None)


def _is_ddp_timing(site: PredictedSite) -> bool:
    return site.label == _DDP_LABEL and (site.kind or "").endswith("EventSynchronize")


def counter_check(site: PredictedSite) -> str:
    """How to find out that the replacement does not pay at this site."""
    op = operation(site)
    if _is_ddp_timing(site):
        return "Profile steps after the tenth that are no hundredth: the sync must be gone."
    if op in _MASKS:
        return (
            f"{_MOVES} With a very sparse mask on a large tensor the mask can win: the replacement computes on every "
            "element, so look whether the compute time of the step grows by more than the wait."
        )
    if op in _SORTED:
        return f"{_MOVES} Sorting is work of its own: on a large tensor look whether the compute time grows by more."
    if op in _VALUES:
        return (
            f"{_MOVES} A value that the host needs to go on (a schedule, an early stop) must be waited for somewhere."
        )
    if op in _COPIES or (not op and (site.kind or "").endswith("_copy")):
        return f"{_MOVES} Pinning costs the host a copy of its own: for small batches it can cost more than the wait."
    return _MOVES
