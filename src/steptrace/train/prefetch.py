"""The next batch on its way to the device while the step computes: `data.device_prefetch`.

On a GPU a batch is copied on a stream of its own, one batch ahead of the step that trains on it, so the copy runs
beside the computation even where a step ends with the host waiting for the GPU. It needs pinned memory and
`non_blocking` to do so: a copy from pageable memory holds the host up whatever stream it is on.

On a CPU there is nothing to copy; the loader is merely asked for each batch one step early. Batches and their order are
the same as without, so the answers are too, unless the main process draws samples from the global random generators
(0 workers): such a data set then draws before the step's own drawing, say for dropout, where it drew after it.
"""

from collections.abc import Generator, Iterator

import torch

from steptrace.train.loop import Batch, tensors_of, to_device


def prefetched(batches: Generator[Batch], device: torch.device, *, non_blocking: bool) -> Generator[Batch]:
    """The same batches in the same order, on `device`, each fetched and its copy begun one batch early.

    Closing it closes `batches`.
    """
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    try:
        ahead = _load(batches, device, stream, non_blocking=non_blocking)
        while ahead is not None:
            batch, copied = ahead
            # The loader is asked now and not after the step is queued: what it makes the host wait is the same, and
            # the copy is queued before a step that may end with the host waiting.
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
    """Make the stream that computes wait for the copy, and the copying stream keep off memory that it still reads.

    The allocator gives a freed block to the stream it was made on at once. A batch is freed when its step has been
    queued, long before it has been computed: without `record_stream` the next copy would be written over it.
    """
    current = torch.cuda.current_stream(device)
    current.wait_event(copied)
    for tensor in tensors_of(batch):
        tensor.record_stream(current)
