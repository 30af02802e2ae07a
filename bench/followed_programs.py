"""Follows programs whose steps others have published, each in a process of its own, and keeps what was followed."""

import argparse
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from steptrace.documents.base import convert
from steptrace.documents.prediction import PredictedStep, predicted_step
from steptrace.documents.probe import Prediction as Followed


class Program(Protocol):
    """A program that is followed once, to a file."""

    @property
    def file(self) -> str:
        """The name of the file that holds its operators."""


_Program = TypeVar("_Program", bound=Program)


def followed(folder: Path, program: Program) -> PredictedStep | None:
    """The prediction of a program, None where it was not followed."""
    path = folder / program.file
    if not path.is_file():
        return None
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return predicted_step([convert(json.load(file), Followed)])


def last_step(syncs: Any, step: Callable[[], None], steps: int = 3) -> dict[str, Any]:
    """Make a step so many times inside a prediction; what the probe would say of the last one.

    Args:
        syncs: what `predict_syncs()` gave.
        step: makes one step; the first ones also create states.
        steps: their number.
    """
    from steptrace.predict import Prediction

    for _ in range(steps):
        syncs.reset()
        step()
    return Prediction.so_far(syncs).to_json()


def follow_all(
    folder: Path,
    programs: Iterable[_Program],
    follow: Callable[[_Program], dict[str, Any]],
    at_most: int | None = None,
) -> Iterator[str]:
    """Follow each program in a process of its own, unless its file is there; its name.

    Args:
        folder: where the files are.
        programs: what to follow, in this order; a program that comes again is followed once.
        follow: follows one of them, and returns what the probe would say of it.
        at_most: how many to follow; None for all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left = [program for program in dict.fromkeys(programs) if not (folder / program.file).is_file()]
    for program in left[:at_most]:
        path = folder / program.file
        child = os.fork()
        if child == 0:
            with gzip.open(path.with_suffix(".part"), "wt", encoding="utf-8", compresslevel=3) as file:
                json.dump(follow(program), file)
            path.with_suffix(".part").rename(path)
            os._exit(0)
        os.waitpid(child, 0)
        yield program.file


def main(about: str | None, programs: Iterable[_Program], follow: Callable[[_Program], dict[str, Any]]) -> None:
    """Follow the programs, as the command line asks; `about` is the text of its help."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-most", type=int)
    options = parser.parse_args()
    for name in follow_all(options.out, programs, follow, options.at_most):
        print(name, file=sys.stderr, flush=True)
