"""The source lines of a step's operators, seen by a `TorchDispatchMode`. Needs PyTorch and the standard library only.

A mode sees every dispatched operator while Python's stack is still there. In the backward pass the line is that of the
forward operator whose gradient is computed, found through autograd's sequence numbers.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.profiler.python_tracer import _prefix_regex
from torch.utils._python_dispatch import TorchDispatchMode

import steptrace

#: Said of a program that torch.compile has compiled parts of: no dispatch mode sees into these.
COMPILED = (
    "its compiled part cannot be watched operator by operator, so operators there, and what runs after it, have no "
    "source line"
)
#: What PyTorch calls the function that runs a backward pass.
_ENGINE = "_engine_run_backward"
_PIPELINE = str(Path(steptrace.__file__).parent) + "/"
_WORKLOADS = _PIPELINE + "workloads/"
#: Frames to look past: PyTorch's, the interpreter's own, and those of a probe inside somebody else's program.
_LOOK_PAST = (str(Path(torch.__file__).parent) + "/", "<", _PIPELINE + "launch/")


@dataclass(frozen=True)
class Site:
    """A line of source that called an operator; `path` is the file's absolute path."""

    path: str
    line: int
    function: str


@dataclass(frozen=True)
class OpLine:
    """One dispatched operator: its name, the innermost and outermost `record_function` label, and its site."""

    op: str
    label: str | None
    phase: str | None
    site: Site | None


class OpLineRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records an `OpLine` for every operator dispatched while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[OpLine] = []
        # Plain lists and dicts instead of thread-local ones: on a GPU the backward pass runs in a thread of its own.
        self._labels: list[str] = []
        self._forward_sites: dict[int, Site | None] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Note the operator, then run it."""
        name: str = func._schema.name
        if name.startswith("profiler::_record_function_enter"):
            self._labels.append(args[0])
        elif name.startswith("profiler::_record_function_exit"):
            self._labels.pop()
        else:
            labels = self._labels
            self.lines.append(OpLine(name, labels[-1] if labels else None, labels[0] if labels else None, self._site()))
            return self.run(lambda: func(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))

    def run(self, operator: Callable[[], Any]) -> Any:
        """Run the operator whose line was recorded last."""
        return operator()

    def rows(self) -> list[dict[str, Any]]:
        """The rows of `schema.OP_LINES`, with the files called as a trace calls them."""
        names = self._names()
        return [
            {
                **{"order": order, "op": line.op, "label": line.label, "phase": line.phase},
                "file": names[line.site.path] if line.site else None,
                "line": line.site.line if line.site else None,
                "function": line.site.function if line.site else None,
            }
            for order, line in enumerate(self.lines)
        ]

    def sources(self) -> dict[str, str]:
        """The text of each file that the rows name."""
        files = {name: Path(path) for path, name in self._names().items()}
        return {name: f.read_text(encoding="utf-8", errors="replace") for name, f in files.items() if f.is_file()}

    def _names(self) -> dict[str, str]:
        paths = sorted({line.site.path for line in self.lines if line.site})
        return {path: trace_file_name(path) for path in paths}

    def _site(self) -> Site | None:
        node = torch._C._current_autograd_node()
        if node is not None:  # in the backward pass, where most operators have no Python frame of their own
            own = calling_site(sys._getframe(2), until=_ENGINE)
            return own or self._forward_sites.get(node._sequence_nr()) or calling_site(sys._getframe(2))
        site = calling_site(sys._getframe(2))
        # Autograd numbers its nodes, and makes an operator's node just before it dispatches the operator: the first
        # operator seen after a number was given out is the one that the node belongs to.
        sequence_nr = torch.autograd._get_sequence_nr() - 1
        self._forward_sites.setdefault(sequence_nr, site)
        return site


def calling_site(frame: FrameType | None, until: str | None = None) -> Site | None:
    """The first frame from `frame` outwards, up to a function called `until`, that is neither PyTorch's nor our own.

    None once the pipeline's own code is reached, since what lies further out only started it. The workloads count as
    the user's code.
    """
    while frame is not None and frame.f_code.co_name != until:
        path = frame.f_code.co_filename
        if not path.startswith(_LOOK_PAST):
            if path.startswith(_PIPELINE) and not path.startswith(_WORKLOADS):
                return None
            return Site(path, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def why_incomplete(error: Exception) -> str:
    """A plain sentence where the reason is known: no dispatch mode sees into what torch.compile has made."""
    reason = next(iter(str(error).splitlines()), "")
    if "torch.compile" in reason or type(error).__module__.startswith("torch._dynamo"):
        return COMPILED
    return f"source lines are incomplete: the watched step raised {type(error).__name__}: {reason}"


def trace_file_name(path: str) -> str:
    """A file's name as Kineto writes it into a trace: without the entry of `sys.path` that it lies under."""
    # PyTorch's own list of these entries, so that both agree by construction.
    prefix = next((prefix for prefix in _prefix_regex() if path.startswith(prefix)), "")
    return path.removeprefix(prefix)
