"""Which source line runs which operator: one more step, watched operator by operator.

A Kineto trace names the function around an operator, but only with the line of its `def`. Here one step runs under a
`TorchDispatchMode`, which sees every dispatched operator while Python's stack is still there, and writes the line of
the first frame that is neither PyTorch's nor the pipeline's own (`schema.OP_LINES`). In the backward pass the
line is that of the forward operator whose gradient is computed, found through autograd's sequence numbers.

The step is slow and is never timed.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd
import torch
from torch.profiler.python_tracer import _prefix_regex
from torch.utils._python_dispatch import TorchDispatchMode

import steptrace
from steptrace.files import replace_atomically, write_json
from steptrace.schema import OP_LINES, validate
from steptrace.train.loop import Training, train_step

LINES_FILE = "op_lines.parquet"
SOURCES_FILE = "sources.json"

_TORCH = str(Path(torch.__file__).parent) + "/"
_PIPELINE = str(Path(steptrace.__file__).parent) + "/"
_WORKLOADS = _PIPELINE + "workloads/"


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

    def _site(self) -> Site | None:
        node = torch._C._current_autograd_node()
        site = calling_site(sys._getframe(2))
        if node is not None:  # in the backward pass, where most operators have no Python frame of their own
            return site or self._forward_sites.get(node._sequence_nr())
        # Autograd numbers its nodes, and makes an operator's node just before it dispatches the operator: the first
        # operator seen after a number was given out is the one that the node belongs to.
        sequence_nr = torch.autograd._get_sequence_nr() - 1
        self._forward_sites.setdefault(sequence_nr, site)
        return site


def calling_site(frame: FrameType | None) -> Site | None:
    """The first frame from `frame` outwards that is neither PyTorch's nor the pipeline's own.

    None once the pipeline's own code is reached, since what lies further out only started it. The workloads count as
    the user's code.
    """
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_PIPELINE) and not path.startswith(_WORKLOADS):
            return None
        if not path.startswith((_TORCH, "<")):
            return Site(path, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def record_op_lines(training: Training, out: Path) -> tuple[str, ...]:
    """Run one more step and write `op_lines.parquet` and `sources.json` (file -> text) into `out`.

    Returns warnings: a step that cannot be watched to its end leaves the lines seen so far.
    """
    recorder = OpLineRecorder()
    warnings: tuple[str, ...] = ()
    try:
        with recorder:
            train_step(training)
    except Exception as error:
        # Of any kind: not everything works under a dispatch mode, and a whole run's timings must not depend on it.
        warnings = (_why_incomplete(error),)
    names = {line.site.path: trace_file_name(line.site.path) for line in recorder.lines if line.site}
    frame = op_lines_table(recorder.lines, names)
    replace_atomically(out / LINES_FILE, lambda temporary: frame.to_parquet(temporary, index=False))
    write_json(
        out / SOURCES_FILE,
        {name: Path(path).read_text(encoding="utf-8") for path, name in sorted(names.items()) if Path(path).is_file()},
    )
    return warnings


def _why_incomplete(error: Exception) -> str:
    """A plain sentence where the reason is known: no dispatch mode sees into what torch.compile has made."""
    reason = next(iter(str(error).splitlines()), "")
    if "torch.compile" in reason or type(error).__module__.startswith("torch._dynamo"):
        return (
            "its compiled part cannot be watched operator by operator, so operators there, and what runs after it, "
            "have no source line"
        )
    return f"source lines are incomplete: the watched step raised {type(error).__name__}: {reason}"


def op_lines_table(lines: list[OpLine], names: Mapping[str, str]) -> pd.DataFrame:
    """The `OP_LINES` table of `lines`, with the files called as `names` (absolute path -> name in the trace) says."""
    sites = [line.site for line in lines]
    frame = pd.DataFrame(
        {
            "order": range(len(lines)),
            "op": [line.op for line in lines],
            "label": [line.label for line in lines],
            "phase": [line.phase for line in lines],
            "file": [names[site.path] if site else None for site in sites],
            "line": pd.array([site.line if site else None for site in sites], dtype="Int64"),
            "function": [site.function if site else None for site in sites],
        }
    )
    return validate(frame, OP_LINES)


def trace_file_name(path: str) -> str:
    """A file's name as Kineto writes it into a trace: without the entry of `sys.path` that it lies under."""
    # PyTorch's own list of these entries, so that both agree by construction.
    prefix = next((prefix for prefix in _prefix_regex() if path.startswith(prefix)), "")
    return path.removeprefix(prefix)
