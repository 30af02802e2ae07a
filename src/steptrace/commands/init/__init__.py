"""`steptrace init`: a folder that studies code of one's own with the installed steptrace."""

import argparse
import shlex
import shutil
from pathlib import Path
from typing import Final

from steptrace.commands.console import show, writing_to
from steptrace.documents.command_answers import InitAnswer
from steptrace.exit_codes import ExitCode
from steptrace.extras import missing_package
from steptrace.output_folder import require_free
from steptrace.root import ROOT

_FILES: Final = Path(__file__).parent / "files"
_README: Final = Path("README.md")
_PROFILE: Final = Path("profiles", "default", "config.yaml")


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's argument."""
    command.description = (
        "Write a Snakefile and a configuration with two studies: one of a command, train.py, and one of classes in "
        "plugins/. Then `snakemake --cores all` in that folder trains their variants and writes the pages; no checkout "
        "of steptrace is needed. README.md there says what each file is. Nothing that is already there is changed."
    )
    command.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder to write to, made if missing; default: .",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the files and say what to do next."""
    folder: Path = arguments.folder
    shipped = (file for file in sorted(_FILES.rglob("*")) if file.is_file() and "__pycache__" not in file.parts)
    sources = {file.relative_to(_FILES): file for file in shipped}
    sources[_PROFILE] = ROOT / _PROFILE
    if (folder / _README).exists():  # of the project that the studies are added to
        del sources[_README]
    # With its dot, .gitignore would apply to our own sources.
    targets = {folder / (".gitignore" if str(name) == "gitignore" else name): file for name, file in sources.items()}
    require_free(folder, [target.relative_to(folder) for target in targets])
    with writing_to(folder):
        for target, source in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    there = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    next_step = f"{there}snakemake --cores all"
    answer = InitAnswer(files=tuple(map(str, targets)), next=next_step)
    takes = "the two studies take some minutes on a laptop; a line after each run says how long it still takes"
    missing = missing_package("snakemake")
    show(arguments, answer, [*answer.files, takes, *([missing] if missing else []), f"next: {next_step}"])
    return ExitCode.DONE
