"""`steptrace baseline save|compare`: store step times, and hold later ones against them."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from steptrace import format as fmt
from steptrace.commands.numbers import ratio
from steptrace.commands.output import columns, show
from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison
from steptrace.errors import ConfigError, RecordError
from steptrace.judging import baseline

EXIT_SLOWER: Final = 1


def add(command: argparse.ArgumentParser) -> tuple[argparse.ArgumentParser, ...]:
    """Add the two sub-commands, and return them."""
    command.description = "A baseline is a small JSON file, made to be committed: baselines/NAME.json."
    actions = command.add_subparsers(title="actions", required=True, dest="action", metavar="save|compare")
    save = actions.add_parser("save", help="store the step times of all measured variants")
    compare = actions.add_parser(
        "compare",
        help="how many times the stored step time each variant takes now",
        description="Exit code 1 if a variant is slower than --max-ratio allows; 2 if the machine is another one.",
    )
    compare.add_argument("--max-ratio", type=ratio, metavar="R", help="the most times the stored step time")
    for action in (save, compare):
        action.add_argument("name", nargs="?", help="name of the baseline: baselines/NAME.json")
        action.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    save.add_argument("--out", type=Path, metavar="FILE", help="file to write instead of baselines/NAME.json")
    compare.add_argument("--from", dest="out", type=Path, metavar="FILE", help="file to read instead")
    return save, compare


def run(arguments: argparse.Namespace) -> int:
    """Do either, and return the exit code."""
    return _save(arguments) if arguments.action == "save" else _compare(arguments)


def _save(arguments: argparse.Namespace) -> int:
    path = _path(arguments, "--out FILE")
    document = baseline.save(_comparisons(arguments.results), path)
    count = sum(len(study.variants) for study in document.studies.values())
    studies = fmt.plural(len(document.studies), "study", "studies")
    text = f"{path}: step times of {fmt.plural(count, 'variant')} in {studies}"
    show(arguments, {"file": path, "variants": count, "studies": list(document.studies)}, text)
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    path = _path(arguments, "--from FILE")
    if not path.is_file():
        raise _no_baseline(path, arguments.name)
    document = baseline.load(path)
    comparisons = [c for c in _comparisons(arguments.results) if c.study in document.studies]
    if not comparisons:
        raise RecordError(
            "none of the studies in it has results here", where=path, expected=", ".join(document.studies)
        )
    for comparison in comparisons:
        differing = baseline.differences(document, comparison, baseline.MACHINE)
        if differing:
            raise RecordError(
                f"{comparison.study} was stored on another machine ({'; '.join(differing)})",
                where=path,
                expected="step times of one machine",
                next_step="save a baseline here",
            )
        for version in baseline.differences(document, comparison, baseline.VERSIONS):
            print(f"steptrace: {comparison.study}: another version: {version}", file=sys.stderr)  # noqa: T201
    found = [change for comparison in comparisons for change in baseline.changes(document, comparison)]
    rows = [(f"{c.study}/{c.variant}", _ms(c.stored_ms), _ms(c.now_ms), _ratio(c.ratio)) for c in found]
    slow = [] if arguments.max_ratio is None else [text for c in found if (text := _too_slow(c, arguments.max_ratio))]
    changes = {
        "file": path,
        "variants": [{**asdict(change), "ratio": change.ratio} for change in found],
        "slower": slow,
    }
    show(arguments, changes, "\n".join(columns(("variant", "stored", "now", "now / stored"), rows)))
    for text in slow:
        print(f"steptrace: {text}", file=sys.stderr)  # noqa: T201
    return EXIT_SLOWER if slow else 0


def _too_slow(change: baseline.Change, most: float) -> str | None:
    """What is wrong with a variant's step time; one that is not stored cannot be judged, one that is must be there."""
    name = f"{change.study}/{change.variant}"
    if change.stored_ms is None:
        return None
    if change.ratio is None:
        return f"not measured: {name}, which is stored"
    slow = f"slower: {name} takes {_ratio(change.ratio)} the stored time, at most {most:g}"
    return slow if change.ratio > most else None


def _path(arguments: argparse.Namespace, other: str) -> Path:
    if (not arguments.name) is (arguments.out is None):
        raise ConfigError("no baseline is named, or two", expected=f"a NAME or {other}")
    return baseline.path_of(arguments.name) if arguments.out is None else Path(arguments.out)


def _no_baseline(path: Path, name: str | None) -> RecordError:
    known = sorted(file.stem for file in path.parent.glob("*.json"))
    return RecordError(
        "file is missing",
        where=path,
        expected=f"a stored baseline ({', '.join(known) if known else 'there is none here'})",
        next_step=f"steptrace baseline save {f'--out {path}' if name is None else name}",
    )


def _comparisons(results: Path) -> list[Comparison]:
    found = [read(path, Comparison) for path in sorted(results.glob("*/comparison.json"))]
    if not found:
        raise RecordError(
            "there is no comparison.json", where=results, next_step="run `snakemake --cores all`, or name --results DIR"
        )
    return found


def _ms(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g} ms"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}x"
