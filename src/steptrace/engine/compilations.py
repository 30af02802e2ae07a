"""What torch.compile does in this process: compilations and their time, graph breaks, recompilations and their reason.

Dynamo is watched from the moment that the program imports it: when it creates an optimizer or calls `torch.compile`.
Two of its functions are wrapped, and it calls them only while it compiles. So a step that compiles nothing is not
slowed down. No error in here reaches the program.
"""

import importlib.abc
import linecache
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

from steptrace import foreign_messages as messages
from steptrace.documents.compilations import (
    MOST_ROWS,
    BrokenGraph,
    Compilations,
    CompiledFunction,
    GuardKind,
    Recompiled,
)
from steptrace.engine.frames import (
    LOOK_PAST,
    OURS,
    TORCH,
    SourceLine,
    frames_from,
    is_library,
    trace_file_name,
)
from steptrace.engine.process_facts import compiled_graphs
from steptrace.torch_names import has, owner_of

_DYNAMO: Final = "torch._dynamo"
_METRICS: Final = "torch._dynamo.utils.CompilationMetrics.create"
#: Dynamo's own functions, by which it calls a function of PyTorch.
_OF_DYNAMO: Final = f"{TORCH}_dynamo/"
_LOG_BREAK: Final = "torch._dynamo.symbolic_convert.InstructionTranslatorBase.log_graph_break"
#: Most characters of a text that is kept. A guard may hold a prompt, or the text of a file.
_LONGEST: Final = 1_000

_Place = tuple[str, int, str]
#: The key of a failed guard: the compiled function, the guard's line, and its text.
_Failed = tuple[_Place, tuple[str, int], GuardKind, str, int | None]


@dataclass
class _Function:
    """What is known of a compiled function so far."""

    code: str | None
    compilations: int = 0
    compile_us: int = 0
    limit_reached: bool = False


@dataclass
class CompilationLog:
    """What was compiled so far; `watch` fills it."""

    functions: dict[_Place, _Function] = field(default_factory=dict)
    breaks: dict[tuple[_Place, str], BrokenGraph] = field(default_factory=dict)
    recompilations: dict[_Failed, Recompiled] = field(default_factory=dict)
    compile_us: int = 0
    #: The function of each frame that Dynamo numbers.
    frames: dict[str, _Place] = field(default_factory=dict)

    def compiled(self, metrics: Any) -> None:
        """Note one compilation: of a graph and its code, or of a backward pass.

        Args:
            metrics: what Dynamo says of it.
        """
        if metrics.is_runtime:  # tuning and such: not compiled code's own compilation
            return
        took_us = int(metrics.duration_us or 0)
        self.compile_us += took_us
        frame = str(metrics.compile_id or "").partition("/")[0]
        if metrics.co_filename is not None and metrics.co_filename.startswith(OURS):
            return  # a function of ours around PyTorch's
        if metrics.co_filename is not None:
            name = _plain(metrics.co_name or "")
            line = int(metrics.co_firstlineno or 0)
            place = trace_file_name(metrics.co_filename), line, name
            self.frames[frame] = place
            if place not in self.functions:
                self.functions[place] = _Function(_text(metrics.co_filename, line))
        if frame not in self.frames:
            return
        place = self.frames[frame]
        function = self.functions[place]
        function.compile_us += took_us
        is_over = messages.DYNAMO_LIMIT.find(metrics.fail_reason or "") is not None
        if is_over:
            function.limit_reached = True
        elif metrics.is_forward and metrics.fail_type is None:
            function.compilations += 1
        if metrics.recompile_reason:
            # Over the limit Dynamo gives the reason, too, but compiles nothing.
            self._recompiled(place, metrics.recompile_reason, 0 if is_over else 1)

    def _recompiled(self, place: _Place, reason: str, times: int) -> None:
        guard, kind, value, dimension = guard_of(reason)
        value = shortened(value)
        stack = [
            (match["file"], int(match["line"])) for match in messages.DYNAMO_LINE_OF_GUARD.pattern.finditer(reason)
        ]
        file, line, function = place
        code = self.functions[place].code
        for guard_file, guard_line in reversed(stack):
            if not guard_file.startswith(LOOK_PAST):
                file = trace_file_name(guard_file)
                line = guard_line
                code = _text(guard_file, guard_line)
                break
        first = Recompiled(
            file=file,
            line=line,
            function=function,
            code=code,
            compiled_file=place[0],
            compiled_line=place[1],
            kind=kind,
            value=value,
            dimension=dimension,
            guard=shortened(guard),
            recompilations=0,
        )
        key = place, (file, line), kind, value, dimension
        before = self.recompilations.get(key, first)
        self.recompilations[key] = Recompiled(**{**vars(before), "recompilations": before.recompilations + times})

    def broken(self, translator: Any, error: Any) -> None:
        """Note a graph break.

        Args:
            translator: Dynamo's, at the instruction that it cannot follow.
            error: what it has raised.
        """
        stack = getattr(error, "real_stack", None)
        site = _site(stack or ()) or SourceLine(
            translator.f_code.co_filename, int(translator.lineno or 0), translator.f_code.co_name
        )
        if site.file.startswith(_OF_DYNAMO):  # a function of PyTorch that the program compiles by itself
            running = frames_from(sys._getframe())
            site = next((frame for frame in running if not frame.file.startswith((*LOOK_PAST, *OURS))), site)
        if (stack[-1].filename if stack else translator.f_code.co_filename).startswith(OURS):
            return  # steps are counted outside of compiled code
        kind = getattr(error, "gb_type", None) or type(error).__name__
        place = trace_file_name(site.file), site.line, _plain(site.function)
        before = self.breaks.get((place, kind))
        self.breaks[place, kind] = BrokenGraph(
            file=place[0],
            line=place[1],
            function=place[2],
            kind=kind,
            code=_text(site.file, site.line),
            hints=hints_of(error),
            compilations=1 if before is None else before.compilations + 1,
            by_pytorch=broken_by_pytorch(kind, (frame.filename for frame in getattr(error, "real_stack", None) or ())),
        )

    def record(self) -> Compilations | None:
        """The complete record; None if nothing was compiled."""
        if not self.functions and not self.breaks:
            return None
        functions = [
            CompiledFunction(
                file=file,
                line=line,
                function=function,
                code=entry.code,
                compilations=entry.compilations,
                compile_ns=1000 * entry.compile_us,
                limit_reached=entry.limit_reached,
            )
            for (file, line, function), entry in self.functions.items()
        ]
        functions.sort(key=lambda entry: -entry.compile_ns)
        recompilations = sorted(self.recompilations.values(), key=lambda entry: -entry.recompilations)
        return Compilations(
            graphs=compiled_graphs(),
            compile_ns=1000 * self.compile_us,
            functions=tuple(functions[:MOST_ROWS]),
            breaks=tuple(self.breaks.values())[:MOST_ROWS],
            recompilations=tuple(recompilations[:MOST_ROWS]),
        )


def hints_of(error: object) -> tuple[str, ...]:
    """PyTorch's hints on how to avoid a graph break, in its words, each ended by a full stop if it has no other end."""
    hints = dict.fromkeys(map(shortened, messages.DYNAMO_HINT.pattern.findall(str(error))))
    return tuple(hint if hint.endswith((".", "!", "?", "…")) else f"{hint}." for hint in hints)


def guard_of(reason: str) -> tuple[str, GuardKind, str, int | None]:
    """What a guard that has failed holds.

    Args:
        reason: as PyTorch writes it: the number of a compilation, the guard, its line's text and stack.

    Returns:
        The guard's text, its kind, the value that it checks, and the dimension if that is a size or stride.
    """
    text = messages.DYNAMO_COMPILATION.pattern.sub("", reason, count=1).partition("\n")[0]
    guard = text.partition("  # ")[0].strip()
    for kind, pattern in messages.DYNAMO_GUARDS:
        match = pattern.match(guard)
        if match is None:
            continue
        value = match["value"].strip()
        if kind == "value":
            exact, value = kind_of_value(value, of_module=messages.DYNAMO_OF_MODULE.find(text) is not None)
            return guard, exact, value, None
        number = match.groupdict().get("dimension")
        return guard, cast("GuardKind", kind), value, None if number is None else int(number)
    return guard, "other", guard, None


def kind_of_value(name: str, *, of_module: bool) -> tuple[GuardKind, str]:
    """The kind of a guard on a number, a string or a flag, and the object that it is about.

    Args:
        name: Dynamo's name of the value.
        of_module: whether it is a module's attribute.
    """
    for kind, pattern in messages.DYNAMO_NAMED_VALUES:
        match = pattern.match(name)
        if match is not None:
            return cast("GuardKind", kind), match["value"]
    return "module_value" if of_module else "value", name


def broken_by_pytorch(kind: str, files: Iterable[str]) -> bool:
    """Whether a graph breaks by code of PyTorch's own that the program cannot change.

    PyTorch's optimizers ask for a graph break at the end of each step. The same holds for any break in a function of
    PyTorch that the program compiles by itself. Where PyTorch's function was called by compiled code of the program,
    another call or other arguments may do without the break.

    Args:
        kind: Dynamo's own name of the reason.
        files: those of the frames that Dynamo follows, the outermost first.
    """
    frames = list(files)
    # Dynamo's own frames belong to the call of the compiled function, which the program chose to compile.
    is_inside = bool(frames) and frames[-1].startswith(TORCH) and not frames[-1].startswith(_OF_DYNAMO)
    return is_inside and (
        messages.DYNAMO_ASKED_FOR.find(kind) is not None or all(frame.startswith(TORCH) for frame in frames)
    )


def _text(file: str, line: int) -> str | None:
    return shortened(linecache.getline(file, line).strip()) or None


def shortened(text: str) -> str:
    """The text, cut in the middle to `_LONGEST` characters: the compared values stand at its end."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[: half - 1]}…{text[-half:]}"


def _plain(function: str) -> str:
    """The name of a function; for code after a graph break, the name of the function that it belongs to."""
    resumed = messages.DYNAMO_RESUMED.find(function)
    return resumed["function"] if resumed else function


def _site(stack: Iterable[Any]) -> SourceLine | None:
    """The innermost frame of the program among those that Dynamo follows, or of a library if there is no other."""
    frames = [SourceLine(frame.filename, int(frame.lineno or 0), frame.name) for frame in stack]
    outside = [frame for frame in frames if not frame.file.startswith(LOOK_PAST)]
    of_program = [frame for frame in outside if not is_library(frame.file)]
    return next((candidates[-1] for candidates in (of_program, outside, frames) if candidates), None)


#: What this process has compiled.
LOG: Final = CompilationLog()


def watch(and_then: Callable[[], None] = lambda: None) -> None:
    """Fill `LOG` from now on: with all that is compiled once Dynamo is imported. `and_then` is called at that time."""
    if _DYNAMO in sys.modules:
        _wrap(and_then)
    else:
        sys.meta_path.insert(0, _AfterDynamo(and_then))


def _wrap(and_then: Callable[[], None]) -> None:
    and_then()
    if has(_METRICS):
        kind = owner_of(_METRICS)
        kind.create = classmethod(_noting(kind.create.__func__, LOG.compiled))
    if has(_LOG_BREAK):
        translator = owner_of(_LOG_BREAK)
        translator.log_graph_break = _noting_breaks(translator.log_graph_break)


def _noting(create: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
    def noted(cls: Any, *args: Any, **kwargs: Any) -> Any:
        metrics = create(cls, *args, **kwargs)
        with suppress(Exception):
            note(metrics)
        return metrics

    return noted


def _noting_breaks(log: Callable[..., Any]) -> Callable[..., Any]:
    def log_graph_break(translator: Any, *args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            error = next(argument for argument in (*args, *kwargs.values()) if isinstance(argument, Exception))
            if not getattr(error, "logged", False):  # it is logged once for each translator around the first
                LOG.broken(translator, error)
        return log(translator, *args, **kwargs)

    return log_graph_break


class _AfterDynamo(importlib.abc.MetaPathFinder):
    """Wraps Dynamo's functions once it is imported; leaves every other import alone."""

    def __init__(self, and_then: Callable[[], None]) -> None:
        self.and_then = and_then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _DYNAMO:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec: Any = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        # A program may ask for the specification, or have it found twice, before it imports the module.
        if spec is None or spec.loader is None or "exec_module" in getattr(spec.loader, "__dict__", ["exec_module"]):
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            with suppress(ValueError):  # the program may have changed the list
                sys.meta_path.remove(self)
            vars(spec.loader).pop("exec_module", None)  # as it was
            execute(module)
            with suppress(Exception):
                _wrap(self.and_then)

        spec.loader.exec_module = exec_module
        return spec
