"""Watches a step operator by operator: source lines, PyTorch's own warnings of syncs, and how many operators it runs.

Needs PyTorch and the standard library only. A `TorchDispatchMode` sees every dispatched operator while Python's stack
is still there. In the backward pass the line is that of the forward operator whose gradient is computed, matched by
autograd's sequence numbers. The mode and the warning filters are process-wide, and are restored after each step.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, Final

import torch

from steptrace.engine.frames import Site, calling_site, frames_from, program_site, trace_file_name
from steptrace.engine.recording import profiler_is_on, refuse_other_profilers
from steptrace.torch_names import private

_DispatchMode: Final[Any] = private("torch.utils._python_dispatch.TorchDispatchMode") or object
_MODES_OFF: Final[Any] = private("torch.utils._python_dispatch._disable_current_modes") or nullcontext
_LOG: Final = logging.getLogger("steptrace.capture")
#: PyTorch's name of the function that runs a backward pass.
_ENGINE = "_engine_run_backward"
#: The dispatch key of operators that are made of others, and those of kernels for a device.
_COMPOSITE: Final[Any] = getattr(private("torch._C.DispatchKey"), "CompositeImplicitAutograd", None)
_OF_A_DEVICE: Final = ("CPU", "CUDA")
#: Calls that are recorded as one: owner, name, and what a trace calls them. Those that wait are no operators. The last
#: is made of others where a dispatch mode is on, and its copies could not be matched with a trace's.
_CALLS: Final = (
    (torch.cuda, "synchronize", "cudaDeviceSynchronize"),
    (torch.cuda.Stream, "synchronize", "cudaStreamSynchronize"),
    (torch.cuda.Event, "synchronize", "cudaEventSynchronize"),
    (torch, "ctc_loss", "aten::ctc_loss"),
)
#: Text of PyTorch's warning (c10/cuda/CUDAFunctions.cpp).
MESSAGE: Final = "called a synchronizing CUDA operation"
#: Text of the warning at a process's first change of the mode; see docs/syncs.md.
_INCOMPLETE: Final = "Synchronization debug mode is a prototype feature"

#: The innermost line outside of PyTorch and steptrace; of one in a library also the innermost one of the program.
_Sites = tuple[Site | None, Site | None]


@dataclass(frozen=True)
class OpLine:
    """One dispatched operator, or a call of `_CALLS`.

    With its name, the innermost and outermost `record_function` label (of a wait none), its site, and of a site in a
    library the program's line that leads there.
    """

    op: str
    label: str | None
    phase: str | None
    site: Site | None
    program: Site | None = None


class OpLineRecorder(_DispatchMode):  # type: ignore[misc]
    """Records an `OpLine` for every operator dispatched, and every one of `_CALLS`, while it is active.

    A step may begin and end inside a label of the program's, as where `optimizer.step()` is called within
    `record_function`. The recorder sees such a label end that it did not see begin. The next step ends in the same
    labels, so their names are known at the recorder's end, and the operators before that label's end get them then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[OpLine] = []
        # Plain lists and dicts instead of thread-local ones: on a GPU the backward pass runs in a thread of its own.
        self._labels: list[str] = []
        #: For each end of a label that began before the recorder did: how many operators had been recorded by then.
        self._ends_of_earlier: list[int] = []
        self._forward_sites: dict[int, _Sites] = {}
        self._replaced: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Any:
        """Begin, and note each of `_CALLS` meanwhile."""
        for owner, name, shown in _CALLS:
            real = getattr(owner, name)
            self._replaced.append((owner, name, real))
            setattr(owner, name, self._noting(real, shown))
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        """End."""
        while self._replaced:
            setattr(*self._replaced.pop())
        self._name_earlier_labels()
        return super().__exit__(*error)

    def _name_earlier_labels(self) -> None:
        """Give the labels that were open at the recorder's begin to the operators recorded inside them.

        Which labels they were follows from those that are open now; without as many of them they stay unknown.
        """
        ends, self._ends_of_earlier = self._ends_of_earlier, []
        if len(ends) != len(self._labels):
            return
        begin = 0
        for number, end in enumerate(ends):
            still_open = self._labels[: len(ends) - number]
            for index in range(begin, end):
                line = self.lines[index]
                if not _is_call_that_waits(line.op):
                    phase = "backward" if line.phase == "backward" else still_open[0]
                    self.lines[index] = replace(line, label=line.label or still_open[-1], phase=phase)
            begin = end

    def _noting(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(call)
        def noted(*args: Any, **kwargs: Any) -> Any:
            sites = _sites(frames_from(sys._getframe(1)))
            label, phase = (None, None) if _is_call_that_waits(name) else self._part()
            self.lines.append(OpLine(name, label, phase, *sites))
            first = _next_sequence_nr()
            with _MODES_OFF():
                result = call(*args, **kwargs)
            self._forward_sites |= dict.fromkeys(range(first, _next_sequence_nr()), sites)
            return result

        return noted

    def _part(self) -> tuple[str | None, str | None]:
        """The label of an operator that runs now, and its phase."""
        labels = self._labels
        phase = "backward" if torch._C._current_autograd_node() is not None else labels[0] if labels else None
        return labels[-1] if labels else None, phase

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record the operator, then run it."""
        name: str = func._schema.name
        if name.startswith("profiler::_record_function_enter"):
            self._labels.append(args[0])
        elif name.startswith("profiler::_record_function_exit"):
            if self._labels:
                self._labels.pop()
            else:
                self._ends_of_earlier.append(len(self.lines))
        elif not types and _arrives_whole(func):  # a tensor's subclass may expect the whole one
            with _Insides(self):
                # Not `decompose`: of some it takes an implementation in Python that makes them of others.
                return func._op_dk(_COMPOSITE, *args, **(kwargs or {}))
        else:
            self.lines.append(OpLine(name, *self._part(), *self._called_from()))
        return func(*args, **(kwargs or {}))

    def rows(self, step: int = 0) -> list[dict[str, Any]]:
        """The rows of `OpLine` of one step, with file names as in a trace."""
        names = self._names()
        return [
            {
                **{"step": step, "order": order, "op": line.op, "label": line.label, "phase": line.phase},
                "file": names[line.site.file] if line.site else None,
                "line": line.site.line if line.site else None,
                "function": line.site.function if line.site else None,
                "program_file": names[line.program.file] if line.program else None,
                "program_line": line.program.line if line.program else None,
            }
            for order, line in enumerate(self.lines)
        ]

    def sources(self) -> dict[str, str]:
        """The text of each file in the rows."""
        files = {name: Path(path) for path, name in self._names().items()}
        return {name: f.read_text(encoding="utf-8", errors="replace") for name, f in files.items() if f.is_file()}

    def _names(self) -> dict[str, str]:
        paths = sorted({site.file for line in self.lines for site in (line.site, line.program) if site})
        return {path: trace_file_name(path) for path in paths}

    def _called_from(self) -> "_Sites":
        here = sys._getframe(2)
        node = torch._C._current_autograd_node()
        if node is not None:  # in the backward pass, where most operators have no Python frame of their own
            own = _sites(frames_from(here, until=_ENGINE))
            forward = self._forward_sites.get(node._sequence_nr(), (None, None))
            return next((sites for sites in (own, forward) if sites[0]), None) or _sites(frames_from(here))
        sites = _sites(frames_from(here))
        # Autograd numbers its nodes, and makes an operator's node just before it dispatches the operator: a node
        # belongs to the first operator dispatched after its number was assigned.
        self._forward_sites.setdefault(_next_sequence_nr() - 1, sites)
        return sites


class _Insides(_DispatchMode):  # type: ignore[misc]
    """Shows a recorder the operators that another one is made of."""

    def __init__(self, recorder: OpLineRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._recorder.__torch_dispatch__(func, types, args, kwargs)


def _is_call_that_waits(name: str) -> bool:
    """Whether the name of a recorded call is that of a wait, which is no operator and has no label."""
    return "::" not in name


def _next_sequence_nr() -> int:
    """The number that autograd gives to its next node in this thread."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


@cache
def _arrives_whole(func: Any) -> bool:
    """Whether a mode sees the operator in inference mode only, and otherwise those that it is made of.

    One function may ask for a value of an inference tensor and for one of another (`aten::item`, or what lies within):
    recorded under two names, they could not be matched with a trace, which has both operators of both.
    """
    has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
    return has_kernel(_COMPOSITE) and not any(map(has_kernel, _OF_A_DEVICE))


def _sites(frames: Iterable[Site]) -> _Sites:
    stack = [frame for frame in frames if frame.file != __file__]  # `_Insides` stands between operators
    site = calling_site(stack)
    return site, program_site(stack, site)


def is_of_compiled_code(error: Exception) -> bool:
    """Whether a watched step failed since a dispatch mode was on in code from torch.compile.

    PyTorch raises plain errors there, too, which only their text tells from others.
    """
    return type(error).__module__.startswith("torch._dynamo") or "torch.compile" in str(error).partition("\n")[0]


def first_line(error: Exception) -> str:
    """An error's type and the first line of its message."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


@contextmanager
def counted_warnings(counts: list[int], text: str = MESSAGE) -> Generator[None]:
    """Add to `counts` how many warnings contain `text`; PyTorch's are on meanwhile if the process uses CUDA."""
    cuda: Any = torch.cuda
    before = cuda.get_sync_debug_mode() if cuda.is_initialized() else None
    counts.append(0)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        shown = warnings.showwarning

        def note(message: Any, *details: Any, **more: Any) -> None:
            if text in str(message):
                counts[-1] += 1
            elif _INCOMPLETE not in str(message):
                shown(message, *details, **more)

        warnings.showwarning = note
        try:
            if before is not None:
                cuda.set_sync_debug_mode("warn")
            yield
        finally:
            if before is not None and not cuda._is_in_bad_fork():  # as a loader's worker is, forked meanwhile
                cuda.set_sync_debug_mode(before)


class OperatorCounter:
    """Counts the operators of whole steps by PyTorch's older profiler, which takes a step under 1 ms more.

    Unlike a dispatch mode it lets compiled code run as it is. Unlike the newer one it records on the host alone: once
    used without CUDA that one never records a GPU, and used with CUDA it slows the later steps. It stops at an error.
    """

    def __init__(self, steps: int) -> None:
        self.counts: list[int] = []
        self._is_on = False
        self._stopped = False
        with self._stopping_with_errors():
            refuse_other_profilers(steps)

    def begin(self) -> None:
        """To be called when a step begins."""
        if self._stopped or profiler_is_on():
            return
        with self._stopping_with_errors():
            from torch._C import _autograd, _profiler

            config: Any = _profiler.ProfilerConfig
            options = _profiler._ExperimentalConfig()
            _autograd._enable_profiler_legacy(config(_profiler.ProfilerState.CPU, *[False] * 5, options))
            self._is_on = True

    def end(self, *, count: bool = True) -> None:
        """To be called when it ends; without `count` it is left out."""
        if not self._is_on:
            return
        self._is_on = False
        with self._stopping_with_errors():
            from torch._C import _autograd

            events: list[list[Any]] = _autograd._disable_profiler_legacy()
            began = [event for thread in events for event in thread if event.kind() == "push"]
            if count:
                self.counts.append(sum(event.name().startswith("aten::") for event in began))

    @contextmanager
    def _stopping_with_errors(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            _LOG.debug("operators are not counted: %s", error)
            self._stopped = True
            self.counts.clear()
