"""Copies the next batch to the device during the step: `data.device_prefetch`.

On a GPU a batch is copied on a separate stream, one batch ahead of the step that trains on it, so the copy overlaps
with computation even if the step ends with a sync. This needs pinned memory and `non_blocking`: a copy from pageable
memory blocks the host on any stream.

On a CPU the loader only loads each batch one step early. Batches and their order are the same as without, and so are
the results, unless the data set draws from the global random generators in the main process (0 workers): it then draws
before the step's own draws (dropout), not after them.
"""

from collections.abc import Generator, Iterator

import torch

from steptrace.engine.memory import tensors_of
from steptrace.train.loop import Batch, to_device


def prefetched(batches: Generator[Batch], device: torch.device, *, non_blocking: bool) -> Generator[Batch]:
    """The same batches in the same order, on `device`, each fetched and its copy begun one batch early.

    Closing it closes `batches`.
    """
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    try:
        ahead = _load(batches, device, stream, non_blocking=non_blocking)
        while ahead is not None:
            batch, copied = ahead
            # Load now and not after queueing the step: the wait is the same, and the copy is queued before a step that
            # may end with a sync.
            ahead = _load(batches, device, stream, non_blocking=non_blocking)
            if copied is not None:
                _hand_over(batch, copied, device)
            yield batch
    finally:
        batches.close()


def _load(
    batches: Iterator[Batch], device: torch.device, stream: "torch.cuda.Stream | None", *, non_blocking: bool
) -> tuple[Batch, "torch.cuda.Event | None"] | None:
    """The next batch and, if it is on its way to a GPU, the event of its arrival; None after the last one."""
    batch = next(batches, None)
    if batch is None:
        return None
    if stream is None:
        return batch, None
    with torch.cuda.stream(stream):
        batch = to_device(batch, device, non_blocking=non_blocking)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(stream)
    return batch, copied


def _hand_over(batch: Batch, copied: "torch.cuda.Event", device: torch.device) -> None:
    """Make the computing stream wait for the copy, and protect the batch's memory from the next copy.

    The allocator reuses a freed block on its own stream at once. A batch is freed when its step has been queued, long
    before it is computed: without `record_stream` the next copy would overwrite it.
    """
    current = torch.cuda.current_stream(device)
    current.wait_event(copied)
    for tensor in tensors_of(batch):
        tensor.record_stream(current)
