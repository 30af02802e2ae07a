"""Watches the operators of a step: their source lines, their number, and PyTorch's own warnings of syncs.

Needs PyTorch and the standard library only. A `TorchDispatchMode` sees every dispatched operator, with the Python stack
that called it. An operator of the backward pass gets the line of the forward operator whose gradient it computes; both
are matched by autograd's sequence numbers. The mode and the warning filters are process-wide and are restored after
each step.
"""

import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, Final

import torch

from steptrace.engine.frames import SourceLine, calling_site, frames_from, program_site, trace_file_name
from steptrace.engine.rank_record import OpLine
from steptrace.engine.recording import profiler_is_on, refuse_other_profilers
from steptrace.torch_names import owner_of, private

_DispatchMode: Final[Any] = private("torch.utils._python_dispatch.TorchDispatchMode") or object
_MODES_OFF: Final[Any] = private("torch.utils._python_dispatch._disable_current_modes") or nullcontext
_LOG: Final = logging.getLogger("steptrace.capture")
#: PyTorch's name of the function that runs a backward pass.
_ENGINE = "_engine_run_backward"
#: The dispatch key of composite operators, and the keys of kernels for a device.
_COMPOSITE: Final[Any] = getattr(private("torch._C.DispatchKey"), "CompositeImplicitAutograd", None)
_OF_A_DEVICE: Final = ("CPU", "CUDA")
#: Calls that are recorded although they are not dispatched as one operator: owner, name, and the name in a trace. The
#: waits are not operators. `ctc_loss` is split into other operators while a dispatch mode is on, and its copies could
#: not be matched with the numbers in a trace.
_CALLS: Final = (
    (torch.cuda, "synchronize", "cudaDeviceSynchronize"),
    (torch.cuda.Stream, "synchronize", "cudaStreamSynchronize"),
    (torch.cuda.Event, "synchronize", "cudaEventSynchronize"),
    (torch, "ctc_loss", "aten::ctc_loss"),
)
#: PyTorch's function that prints a tensor, with dispatch modes off. On a GPU it reads values.
_PRINTS: Final = "torch._tensor_str._str_intern"
#: Text of PyTorch's warning (c10/cuda/CUDAFunctions.cpp).
MESSAGE: Final = "called a synchronizing CUDA operation"
#: Text of the warning at a process's first change of the mode; see docs/syncs.md.
_INCOMPLETE: Final = "Synchronization debug mode is a prototype feature"

#: The innermost line outside of PyTorch and steptrace; and, if that is in a library, the innermost line of the program.
_Sites = tuple[SourceLine | None, SourceLine | None]


@dataclass(frozen=True)
class RecordedOp:
    """One dispatched operator, or a call of `_CALLS`.

    Attributes:
        op: its name.
        label: the innermost `record_function` label around it; None for a wait.
        phase: `backward`, or the outermost label; None for a wait.
        site: the line that called it.
        program: the program's line that leads to a site in a library.
    """

    op: str
    label: str | None
    phase: str | None
    site: SourceLine | None
    program: SourceLine | None = None


class OpLineRecorder(_DispatchMode):  # type: ignore[misc]
    """While active, records a `RecordedOp` for every dispatched operator and every call of `_CALLS`.

    A step may begin and end inside a label of the program, for example if `optimizer.step()` is called within
    `record_function`. The recorder then sees the end of a label, but not its beginning. The step also ends inside the
    same labels, so their names are known when the recorder ends. The operators before the end of such a label get its
    name then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[RecordedOp] = []
        # Not thread-local, since on a GPU the backward pass runs in another thread.
        self._labels: list[str] = []
        #: For each end of a label that began before the recorder did: how many operators had been recorded by then.
        self._ends_of_earlier: list[int] = []
        self._forward_sites: dict[int, _Sites] = {}
        self._replaced: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Any:
        """Begin to record, with wrappers around `_CALLS` and the function that prints a tensor."""
        for owner, name, shown in _CALLS:
            real = getattr(owner, name)
            self._replaced.append((owner, name, real))
            setattr(owner, name, self._noting(real, shown))
        if (printing := private(_PRINTS)) is not None:
            owner = owner_of(_PRINTS)
            name = _PRINTS.rpartition(".")[2]
            self._replaced.append((owner, name, printing))
            setattr(owner, name, self._seeing(printing))
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        """Stop recording, and restore the wrapped functions."""
        while self._replaced:
            setattr(*self._replaced.pop())
        self._name_earlier_labels()
        return super().__exit__(*error)

    def _name_earlier_labels(self) -> None:
        """Add the labels that were open when the recorder began to the operators inside them.

        They are the labels that are open now, if there are as many; otherwise they stay unknown.
        """
        ends = self._ends_of_earlier
        self._ends_of_earlier = []
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
            self.lines.append(RecordedOp(name, label, phase, *sites))
            first = _next_sequence_nr()
            with _MODES_OFF():
                result = call(*args, **kwargs)
            self._forward_sites |= dict.fromkeys(range(first, _next_sequence_nr()), sites)
            return result

        return noted

    def _seeing(self, printing: Callable[..., str]) -> Callable[..., str]:
        """The function that prints a tensor, with its operators recorded if this thread's are."""
        thread = threading.get_ident()

        @wraps(printing)
        def printed(*args: Any, **kwargs: Any) -> str:
            with _Insides(self) if threading.get_ident() == thread else nullcontext():
                return printing(*args, **kwargs)

        return printed

    def _part(self) -> tuple[str | None, str | None]:
        """The label and the phase of an operator that runs now."""
        labels = self._labels
        if torch._C._current_autograd_node() is not None:
            phase = "backward"
        elif labels:
            phase = labels[0]
        else:
            phase = None
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
        elif not types and _arrives_whole(func):  # with a tensor subclass the composite operator itself is recorded
            with _Insides(self):
                # Not `decompose`, which uses a Python implementation for some operators, with other inner operators.
                return func._op_dk(_COMPOSITE, *args, **(kwargs or {}))
        else:
            self.lines.append(RecordedOp(name, *self._part(), *self._called_from()))
        return func(*args, **(kwargs or {}))

    def rows(self, step: int = 0) -> list[OpLine]:
        """Each operator of the step with its line; file names are as in a trace. `step`: number of the step."""
        names = self._names()
        return [
            OpLine(
                step=step,
                order=order,
                op=line.op,
                label=line.label,
                phase=line.phase,
                file=names[line.site.file] if line.site else None,
                line=line.site.line if line.site else None,
                function=line.site.function if line.site else None,
                program_file=names[line.program.file] if line.program else None,
                program_line=line.program.line if line.program else None,
            )
            for order, line in enumerate(self.lines)
        ]

    def sources(self) -> dict[str, str]:
        """The text of each file in the rows that can be read."""
        texts: dict[str, str] = {}
        for path, name in self._names().items():
            file = Path(path)
            with suppress(OSError):
                if file.is_file():
                    texts[name] = file.read_text(encoding="utf-8", errors="replace")
        return texts

    def _names(self) -> dict[str, str]:
        paths = sorted({site.file for line in self.lines for site in (line.site, line.program) if site})
        return {path: trace_file_name(path) for path in paths}

    def _called_from(self) -> "_Sites":
        here = sys._getframe(2)
        node = torch._C._current_autograd_node()
        if node is not None:  # in the backward pass, where most operators have no Python frame
            backward = _sites(frames_from(here, until=_ENGINE))
            forward = self._forward_sites.get(node._sequence_nr(), (None, None))
            return next((sites for sites in (backward, forward) if sites[0]), None) or _sites(frames_from(here))
        sites = _sites(frames_from(here))
        # Autograd numbers its nodes. It creates an operator's node just before it dispatches the operator, so a node
        # belongs to the first operator dispatched after the node got its number.
        self._forward_sites.setdefault(_next_sequence_nr() - 1, sites)
        return sites


class _Insides(_DispatchMode):  # type: ignore[misc]
    """Shows a recorder the operators inside a composite operator."""

    def __init__(self, recorder: OpLineRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._recorder.__torch_dispatch__(func, types, args, kwargs)


def _is_call_that_waits(name: str) -> bool:
    """Whether a recorded call is a wait, which is not an operator and has no label."""
    return "::" not in name


def _next_sequence_nr() -> int:
    """The number that autograd gives to its next node in this thread."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


@cache
def _arrives_whole(func: Any) -> bool:
    """Whether an operator is composite: a mode sees it in inference mode only, and otherwise its inner operators.

    One function may read a value from an inference tensor (`aten::item`) and another from a usual tensor (the operators
    inside `aten::item`). A trace has the same operators for both, so both are recorded by their inner operators.
    """
    has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
    return has_kernel(_COMPOSITE) and not any(map(has_kernel, _OF_A_DEVICE))


def _sites(frames: Iterable[SourceLine]) -> _Sites:
    stack = [frame for frame in frames if frame.file != __file__]  # frames of `_Insides` lie between operators
    site = calling_site(stack)
    return site, program_site(stack, site)


#: The package that compiles Python code for torch.compile.
_DYNAMO: Final = "torch._dynamo"


def is_of_compiled_code(error: Exception) -> bool:
    """Whether Dynamo raised an error: torch.compile refuses to run while a dispatch mode is on.

    The error's type is not enough, since Dynamo also raises RuntimeError.
    """
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    raised_in = str(innermost.f_globals.get("__name__", ""))
    return type(error).__module__.startswith(_DYNAMO) or raised_in.startswith(_DYNAMO)


def first_line(error: Exception) -> str:
    """An error's type and the first line of its message."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


@contextmanager
def counted_warnings(counts: list[int], text: str = MESSAGE) -> Generator[None]:
    """Append the number of warnings that contain `text` to `counts`.

    If the process uses CUDA, PyTorch's warnings of syncs are switched on meanwhile.
    """
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
            if before is not None and not cuda._is_in_bad_fork():  # this may be a DataLoader's worker, forked meanwhile
                cuda.set_sync_debug_mode(before)


class OperatorCounter:
    """Counts the operators of whole steps by PyTorch's legacy profiler, which adds less than 1 ms to a step.

    Unlike a dispatch mode it does not disturb compiled code. Unlike the Kineto profiler it records on the host only:
    Kineto, once used without CUDA, can no longer record a GPU; used with CUDA, it slows the later steps. After an error
    nothing more is counted, and `counts` is empty.
    """

    def __init__(self, steps: int) -> None:
        self.counts: list[int] = []
        self._is_on = False
        self._stopped = False
        with self._stopping_with_errors():
            refuse_other_profilers(steps)

    def begin(self) -> None:
        """Call this when a step begins."""
        if self._stopped or profiler_is_on():
            return
        with self._stopping_with_errors():
            from torch._C import _autograd, _profiler

            config: Any = _profiler.ProfilerConfig
            options = _profiler._ExperimentalConfig()
            _autograd._enable_profiler_legacy(config(_profiler.ProfilerState.CPU, *[False] * 5, options))
            self._is_on = True

    def end(self, *, count: bool = True) -> None:
        """Call this when the step ends; with `count=False` its operators are not added to `counts`."""
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
