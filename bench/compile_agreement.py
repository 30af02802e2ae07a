"""Whether graphs, graph breaks and recompilations that are predicted are those that PyTorch makes: docs/compile.md.

    python bench/compile_agreement.py [--only PART ...] [--out FILE] [--known FILE] [--all]

Each program of `compile_programs` runs twice, in processes of their own: on the CPU, compiled by PyTorch with the
backend `aot_eager`, and in a prediction for a GPU. Compared are the number of graphs, the graph breaks with Dynamo's
name of the reason and their line, the number of recompilations, and the type of the error that ends the program. What
PyTorch does is read from its own log of graph breaks, its counters and its metrics of compilations. No kernels are
asked for, so neither a GPU nor Triton is needed.
"""

import argparse
import functools
import importlib
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

import compile_programs
from compile_programs import Program
from steptrace.engine.compilations import broken_by_pytorch

#: Seconds after which a program is ended.
_LONGEST: Final = 180
#: The folder of the programs.
_PROGRAMS: Final = f"{Path(compile_programs.__file__).parent}{os.sep}"
#: What is compared.
COMPARED: Final = ("graphs", "breaks", "recompilations", "error")


def _compile(*args: Any, mode: object = None, options: object = None, **others: Any) -> Any:  # noqa: ARG001 - left out
    """`torch.compile` without what the backend `aot_eager` does not know."""
    return torch.compile(*args, **others)


def _error_of(run: Callable[[], object]) -> Exception | None:
    """The error that ends a program; None if none does."""
    try:
        run()
    except Exception as error:  # any error of a program is a fact about it
        return error
    return None


def _line_of(translator: Any, error: Any) -> int | None:
    """The line of the program at which a graph breaks."""
    stack = getattr(error, "real_stack", None) or [translator.frame_summary()]
    lines = [frame.lineno for frame in stack if frame.filename.startswith(_PROGRAMS)]
    if lines:
        return int(lines[-1])
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(_PROGRAMS):
        frame = frame.f_back
    return None if frame is None else frame.f_lineno


def by_pytorch(program: Program) -> dict[str, Any]:
    """What PyTorch does with a program on the CPU."""
    utils: Any = importlib.import_module("torch._dynamo.utils")
    translator: Any = importlib.import_module("torch._dynamo.symbolic_convert").InstructionTranslatorBase
    breaks: list[tuple[str, int | None]] = []
    log = translator.log_graph_break

    def noted(self: Any, code_options: Any, reason: Any = "", exc: Any = None, *args: Any, **kwargs: Any) -> Any:
        kind = getattr(exc, "gb_type", None) or type(exc).__name__
        files = [frame.filename for frame in getattr(exc, "real_stack", None) or ()]
        if not exc.logged and not broken_by_pytorch(kind, files):
            breaks.append((kind, _line_of(self, exc)))
        return log(self, code_options, reason, exc, *args, **kwargs)

    translator.log_graph_break = noted
    torch._dynamo.reset()
    utils.counters.clear()
    utils.clear_compilation_metrics()
    compile = functools.partial(_compile, backend="aot_eager")
    error = _error_of(lambda: program("cpu", compile))
    if isinstance(error, torch._dynamo.exc.Unsupported):  # where one graph is asked for, PyTorch logs no break
        stack = [frame.lineno for frame in getattr(error, "real_stack", ()) if frame.filename.startswith(_PROGRAMS)]
        breaks.append((str(getattr(error, "gb_type", None)), stack[-1] if stack else None))
    compiled = [one for one in utils.get_compilation_metrics() if one.co_name is not None]
    return {
        "graphs": utils.counters["stats"]["unique_graphs"],
        "breaks": sorted(set(breaks), key=str),
        "recompilations": sum(bool(one.recompile_reason) and one.fail_type is None for one in compiled),
        "error": None if error is None else type(error).__name__,
    }


def predicted(program: Program) -> dict[str, Any]:
    """What is predicted for a program on a GPU."""
    from steptrace.predict import Prediction, predict_syncs

    with predict_syncs(follow_compiled=True) as syncs:
        error = _error_of(lambda: program("cuda", torch.compile))
        compiled = Prediction.so_far(syncs).compiled
    codes = () if compiled is None else compiled.codes
    return {
        "graphs": sum(code.graphs for code in codes),
        "breaks": sorted(
            {(one.kind, one.line) for code in codes for one in code.breaks if not one.by_pytorch}, key=str
        ),
        "recompilations": 0 if compiled is None else compiled.recompilations,
        "error": None if error is None else type(error).__name__,
        "unlowered": sorted({f"{code.unlowered}: {code.reason}" for code in codes if code.unlowered is not None}),
    }


def in_process(function: Callable[[Program], dict[str, Any]], program: Program) -> dict[str, Any]:
    """The facts of a program, from a process of its own; `ended` where that process ends early."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        os.close(readable)
        signal.alarm(_LONGEST)
        warnings.simplefilter("ignore")
        with os.fdopen(writable, "w") as file, Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
            try:
                json.dump(function(program), file)
                file.flush()
            finally:
                os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as file:
        text = file.read()
    os.waitpid(child, 0)
    facts: dict[str, Any] = json.loads(text) if text else dict.fromkeys(COMPARED, "ended")
    return facts


def _warm() -> None:
    """Follow something once, so that each process has Inductor and its patterns."""
    from steptrace.predict import graph_compiler, predict_syncs

    graph_compiler.launches_of = lambda *_, **__: []  # type: ignore[assignment]
    with predict_syncs(follow_compiled=True):
        torch.compile(lambda x: x + 1)(torch.ones(2, device="cuda"))


def main() -> None:
    """Run the programs, and print those of which a prediction differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of the programs' names")
    parser.add_argument("--out", type=Path, help="a JSON file with the facts of all programs")
    parser.add_argument("--known", type=Path, help="such a file, of which what PyTorch does is taken over")
    parser.add_argument("--all", action="store_true", help="print programs that agree, too")
    options = parser.parse_args()
    programs = {
        name: program for name, program in compile_programs.load().items() if name.startswith(tuple(options.only))
    }
    known = json.loads(options.known.read_text()) if options.known is not None else {}
    real = {
        name: known[name]["pytorch"] if name in known else in_process(by_pytorch, program)
        for name, program in programs.items()
    }
    _warm()  # afterwards: what PyTorch does is seen in processes without a prediction
    agree = dict.fromkeys(COMPARED, 0)
    wrong = 0
    facts = {}
    for name, program in programs.items():
        found = json.loads(json.dumps(in_process(predicted, program)))
        facts[name] = {"pytorch": real[name], "predicted": found}
        if options.out is not None:
            options.out.write_text(json.dumps(facts, indent=1))
        differs = [part for part in COMPARED if found[part] != real[name][part]]
        wrong += bool(differs)
        for part in COMPARED:
            agree[part] += part not in differs
        if differs or options.all:
            print(f"{name}: {'differs' if differs else 'agrees'}")
            for part in differs or COMPARED:
                print(f"    {part}: PyTorch {real[name][part]}, predicted {found[part]}")
            for reason in found.get("unlowered", ()):
                print(f"    {reason}")
            sys.stdout.flush()
    print(
        f"{len(programs) - wrong} of {len(programs)} programs agree; " + ", ".join(f"{k} {v}" for k, v in agree.items())
    )


if __name__ == "__main__":
    main()
