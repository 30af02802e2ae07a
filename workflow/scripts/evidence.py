"""evidence.py studies|collect|results: what gpu_evidence.sh and `make gpu-results` ask for; see --help of each."""

import argparse
import sys
import tarfile
from pathlib import Path

from steptrace.errors import SteptraceError
from steptrace.evidence.collect import collect, runnable
from steptrace.evidence.tables import render
from steptrace.files import replace_atomically


def pack(folder: Path, file: Path) -> None:
    """Write `folder` as a .tar.gz."""
    with tarfile.open(file, "w:gz") as archive:
        archive.add(folder, folder.name)


parser = argparse.ArgumentParser()
verbs = parser.add_subparsers(dest="verb", required=True)
for verb, what in (("studies", "those this machine can run, one a line"), ("collect", "a node's results, under 5 MB")):
    sub = verbs.add_parser(verb, help=what)
    sub.add_argument("work", type=Path)
    sub.add_argument("--scale", required=True)
sub.add_argument("--out", type=Path, required=True)
sub.add_argument("--origin", required=True, help="what was called on which commit")
sub.add_argument("--archive", type=Path, help="also pack the folder into this .tar.gz")
verbs.choices["studies"].add_argument("--studies", nargs="*", default=[])
results = verbs.add_parser("results", help="some machines' collected results as a page of tables")
results.add_argument("folders", type=Path, nargs="+")
results.add_argument("--out", type=Path, required=True)
options = parser.parse_args()
try:
    if options.verb == "studies":
        chosen, left_out = runnable(Path(__file__).parents[2], options.work, options.scale, options.studies)
        print("\n".join(chosen))
        print("".join(f"{reason}\n" for reason in left_out), end="", file=sys.stderr)
    elif options.verb == "collect":
        folder = collect(options.work, scale=options.scale, out=options.out, origin=options.origin)
        if options.archive:
            replace_atomically(options.archive, lambda file: pack(folder, file))
        print(f"{sum(1 for file in folder.rglob('*') if file.is_file())} files in {folder}")
    else:
        options.out.write_text(render(options.folders), encoding="utf-8")
except SteptraceError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
