"""What was alive when a training ran out of memory, found after the fact: nothing is recorded while it runs.

The traceback keeps every frame's variables alive, the garbage collector knows all tensors that Python holds, and the
autograd graph of any of them leads to what is kept for the backward pass.
"""

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from steptrace.documents.run import LiveTensors, OutOfMemory
from steptrace.record import OUT_OF_MEMORY
from steptrace.train import loop

#: How many kinds of live tensors are written down, the largest first.
_MOST: Final = 40
_LONGEST: Final = 500
_TRIED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|B|KiB|MiB|GiB)")
_REFUSED = re.compile(r"could not (create|execute|initialize) a ")
_UNITS: Final = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class LiveTensorSums:
    """The storages of a training's lasting tensors on its device, by category, each storage once."""

    def __init__(self, held: Mapping[str, Sequence[Tensor]], device: torch.device, base_bytes: int | None) -> None:
        self.device, self.base_bytes = device, base_bytes
        self.categories = tuple(held)
        #: Storage -> its category, a name for the tensor, and the tensor.
        self.storages: dict[int, tuple[str, str, Tensor]] = {}
        for category, tensors in held.items():
            for tensor in tensors:
                self.add(category, category.replace("_", " "), tensor)

    def add(self, category: str, what: str, tensor: Tensor) -> None:
        """Note a tensor of the device, unless its storage is known already."""
        if isinstance(tensor, FakeTensor):  # torch.compile's: before PyTorch 2.13 its address is 0, not an error
            return
        try:
            storage = tensor.untyped_storage()
            if tensor.device.type == self.device.type and storage.nbytes():
                self.storages.setdefault(storage.data_ptr(), (category, what, tensor))
        except (RuntimeError, NotImplementedError):
            return  # a tensor without a storage, such as a fake one

    def sizes(self) -> dict[str, int]:
        """Bytes by category."""
        found = dict.fromkeys(self.categories, 0)
        for category, _, tensor in self.storages.values():
            found[category] = found.get(category, 0) + tensor.untyped_storage().nbytes()
        return found

    def rows(self) -> list[LiveTensors]:
        """The tensors by category, name, shape and dtype, the most bytes first."""
        groups: defaultdict[tuple[str, str, tuple[int, ...], str], list[int]] = defaultdict(list)
        for category, what, tensor in self.storages.values():
            key = (category, what, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            groups[key].append(tensor.untyped_storage().nbytes())
        rows = [
            LiveTensors(category=category, what=what, shape=shape, dtype=dtype, count=len(sizes), bytes=sum(sizes))
            for (category, what, shape, dtype), sizes in groups.items()
        ]
        return sorted(rows, key=lambda row: -row.bytes)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out: torch's, Python's, or one that wraps such a message."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or bool(
        OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}")
    )


def is_refusal(error: BaseException) -> bool:
    """Whether a library says only that it could not do its work, as oneDNN does when it gets no memory."""
    return isinstance(error, RuntimeError) and bool(_REFUSED.search(str(error)))


def out_of_memory(error: BaseException, live_tensors: LiveTensorSums) -> OutOfMemory:
    """What can be said of an out of memory, from the exception and all tensors alive. `live_tensors` is added to."""
    used = used_bytes(live_tensors)
    for tensor in _batch(error.__traceback__):
        live_tensors.add("inputs", "batch", tensor)
    everything = [thing for thing in gc.get_objects() if _is_tensor(thing)]
    for what, tensor in _saved([tensor for tensor in everything if tensor.grad_fn is not None]):
        live_tensors.add("activations", what, tensor)
    for tensor in everything:
        kept = tensor.grad_fn is not None
        live_tensors.add("activations" if kept else "unknown", tensor.grad_fn.name() if kept else "tensor", tensor)
    sizes = live_tensors.sizes()
    if used is not None:
        sizes["unknown"] = sizes.get("unknown", 0) + max(used - sum(sizes.values()), 0)
    message = next(iter(str(error).splitlines()), "") or type(error).__name__
    return OutOfMemory(
        message=message[:_LONGEST],
        phase=phase_of(error.__traceback__),
        requested_bytes=requested_bytes(str(error)),
        used_bytes=used,
        by_category=sizes,
        live=tuple(live_tensors.rows()[:_MOST]),
    )


def requested_bytes(message: str) -> int | None:
    """The bytes that an allocation asked for, by its error's message; None if it does not say."""
    match = _TRIED.search(message)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


def phase_of(traceback: TracebackType | None) -> str | None:
    """The part of a step that an exception left the loop from; None outside of the steps.

    Read from the loop's own source, so that the loop need not keep a note of where it is.
    """
    found = None
    for _, line in _in_loop(traceback):
        inner = [(end - start, label) for start, end, label in _sections() if start <= line <= end]
        found = min(inner)[1] if inner else found
    return "data" if found == "copy data" else found


def used_bytes(live_tensors: LiveTensorSums) -> int | None:
    """What the training has taken: by the caching allocator on a GPU, by the process's private memory on a CPU."""
    if live_tensors.device.type == "cuda":
        return torch.cuda.memory_allocated(live_tensors.device)
    mapped = mapped_bytes()
    return None if mapped is None or live_tensors.base_bytes is None else max(mapped - live_tensors.base_bytes, 0)


def mapped_bytes() -> int | None:
    """This process's private writable memory, as RLIMIT_DATA counts it; None where /proc does not tell."""
    return status_bytes("VmData")


def status_bytes(name: str) -> int | None:
    """A figure of /proc/self/status in bytes; None where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


@cache
def _sections() -> tuple[tuple[int, int, str], ...]:
    """First line, last line and label of every `with section("...")` of the loop."""
    found = []
    for node in ast.walk(ast.parse(Path(loop.__file__).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.With) or node.end_lineno is None:
            continue
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "section":
                label = call.args[0]
                if isinstance(label, ast.Constant):
                    found.append((node.lineno, node.end_lineno, str(label.value)))
    return tuple(found)


def _batch(traceback: TracebackType | None) -> Iterator[Tensor]:
    """The tensors of the batch that the loop was working on."""
    for frame, _ in _in_loop(traceback):
        for name in ("inputs", "targets"):
            yield from loop.tensors_of(frame.f_locals.get(name))


def _in_loop(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """The frames of the training loop with their lines, from the outermost inwards."""
    return ((frame, line) for frame, line in walk_tb(traceback) if frame.f_code.co_filename == loop.__file__)


def _is_tensor(thing: Any) -> bool:
    try:
        return issubclass(type(thing), Tensor)
    except ReferenceError:
        return False


def _saved(roots: Iterable[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What the autograd graphs behind `roots` keep for the backward pass: the operator's node and the tensor.

    Nothing where checkpointing is at work: to look at what it saved would compute it again.
    """
    if any(type(thing).__name__ == "_CheckpointFrame" for thing in gc.get_objects()):
        return
    nodes = [root.grad_fn for root in roots]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    value = getattr(node, name)
                except RuntimeError:  # released already, as the backward pass came by
                    continue
                saved = value if isinstance(value, list | tuple) else (value,)  # of sizes and numbers nothing is alive
                yield from ((node.name(), tensor) for tensor in saved if isinstance(tensor, Tensor))
