"""Collectives during a prediction: the ranks of a job use gloo, which is shown as the backend that they chose.

With NCCL a collective is a kernel: the host waits only in a barrier. With gloo it waits while values pass through its
memory, how often is not known.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
from torch import distributed as dist

from steptrace.predict.syncs import Syncs
from steptrace.torch_names import missing, private

#: Operators that collectives are made of.
NAMESPACES: Final = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_AVAILABLE: Final = dist.is_available()
#: As PyTorch 2.13 for CUDA 13 brings it.
_NCCL: Final = (2, 29, 7)
#: The number of the running backward pass, below 0 outside of any.
_running_pass: Final[Callable[[], int]] = private("torch._C._current_graph_task_id") or (lambda: -1)
_WorkBase: Any = dist.Work if _AVAILABLE else object

#: The backend that CUDA tensors of a process group are meant for, by the group's name.
_asked: dict[str, str] = {}
#: The latest collectives, kept alive: C++ holds no reference to a collective's Python object.
_alive: "deque[_Work]" = deque(maxlen=4096)
#: The tensors of collectives that nobody waited for, as DistributedDataParallel does not, with their backward pass.
#: NCCL's process group frees them in a collective after its watchdog, which looks every 100 ms, saw them done: here in
#: one of a later backward pass.
_held: list[tuple[int, Any]] = []


def judge(name: str, arguments: Mapping[str, Any], recorder: Syncs) -> None:
    """Count the syncs of one operator of `NAMESPACES`."""
    group = next((arguments[key] for key in ("process_group", "group_name") if arguments.get(key) is not None), "")
    if _asked.get(group if isinstance(group, str) else dist.ProcessGroup.unbox(group).group_name) == "gloo":
        recorder.cannot_judge(name, "gloo takes CUDA tensors through the host's memory, and the host waits for that")
    elif name == "c10d::barrier":
        recorder.sync("stream", name, "the host waits until all ranks have come to the barrier")


class _Work(_WorkBase):  # type: ignore[misc]
    """A collective under way, whose results are tensors of the virtual device; both are held until it is waited for."""

    def __init__(self, real: Any, results: Any) -> None:
        super().__init__()
        self._work: Any = dist.Work.unbox(real)
        self._results = results

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the other ranks. On a GPU its stream would wait."""
        work = self._work
        self._work = None
        self._results = None
        return work is None or bool(work.wait() if timeout is None else work.wait(timeout))

    def is_completed(self) -> bool:
        """Whether all ranks have come to it."""
        return self._work is None or bool(self._work.is_completed())

    def get_future(self) -> Any:
        """The results."""
        results = self._results
        future = torch.futures.Future[Any]()
        if self._work is not None:
            _held.append((_running_pass(), results))
        self.wait()
        future.set_result(results)
        return future


def with_results(value: Any, results: Sequence[Any]) -> Any:
    """A value that an operator of c10d returns beside `results`: a `Work` gives them in place of the CPU's."""
    if not isinstance(value, torch.ScriptObject):
        return value
    running = _running_pass()
    _held[:] = [held for held in _held if held[0] == running >= 0]
    work = _Work(value, next(iter(results), []))
    _alive.append(work)
    return work.boxed()


def _in_rows(operator: Any) -> Callable[..., Any]:
    """A collective on whole tensors, as NCCL runs it: NCCL only compares their sizes, and gloo needs a row per rank."""

    def run(*tensors_and_more: Any, **named: Any) -> Any:
        flat = [value.view(-1) if isinstance(value, torch.Tensor) else value for value in tensors_and_more]
        return operator(*flat, **named)

    return run


#: Operator -> what runs in its place.
SUBSTITUTES: Final[dict[Any, Callable[..., Any]]] = (
    {
        operator: _in_rows(operator)
        for name in ("_allgather_base_", "_reduce_scatter_base_")
        if (operator := getattr(getattr(torch.ops.c10d, name, None), "default", None)) is not None
    }
    if _AVAILABLE
    else {}
)


def release() -> None:
    """Forget the tensors of collectives, at a prediction's end."""
    _held.clear()


def replacements() -> dict[tuple[Any, str], Any]:
    """The replacements by owner and name: a process group for NCCL is made of gloo, and says that it is NCCL's."""
    if not _AVAILABLE or missing("ranks"):
        return {}
    c10d: Any = dist.distributed_c10d
    make = c10d._new_process_group_helper
    object_device = c10d._get_object_coll_device
    timeout = c10d._get_default_timeout("gloo")

    def new_process_group(size: int, rank: int, ranks: Any, backend: Any, store: Any, *more: Any, **named: Any) -> Any:
        on_cuda = c10d.BackendConfig(c10d.Backend(str(backend))).get_device_backend_map().get("cuda")
        if on_cuda not in ("nccl", "gloo"):
            return make(size, rank, ranks, backend, store, *more, **named)
        named = {**named, "backend_options": None, "device_id": None}
        group_and_prefix = make(size, rank, ranks, c10d.Backend("gloo"), store, *more, **named)
        group, prefix = group_and_prefix
        if isinstance(group, c10d.ProcessGroup):
            _asked[group.group_name] = on_cuda
            c10d._world.pg_map[group] = (backend, prefix)
            c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(backend))
        return group_and_prefix

    def of_objects(group: Any = None) -> str:
        name = (group or c10d._get_default_group()).group_name
        config = dist.get_backend_config(group)
        return "cuda" if _asked.get(name) == "nccl" and "cpu" not in config else str(object_device(group))

    backend_name = c10d.ProcessGroup._get_backend_name

    return {
        (c10d.ProcessGroup, "_get_backend_name"): lambda self: _asked.get(self.group_name) or backend_name(self),
        (c10d, "_new_process_group_helper"): new_process_group,
        (c10d, "_get_object_coll_device"): of_objects,
        (c10d, "_get_default_timeout"): lambda _backend: timeout,
        (dist, "is_nccl_available"): lambda: True,
        (torch.cuda.nccl, "version"): lambda *_: _NCCL,
    }
