"""Keep what steptrace says of given traces and results, so that two versions of it can be compared.

    python tests/snapshot.py OUT --traces FOLDER --results FOLDER [--source SRC]
    diff -r OUT_OF_ONE_VERSION OUT_OF_ANOTHER

Of every trace file in FOLDER, and of all two-rank traces together, summary.json and the visible text of the page; of
every study in a copy of the results folder the summaries of its first runs, comparison.json and the page's text. SRC is
the `src` folder of the version that is asked (default: this checkout's).
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path


class _Text(HTMLParser):
    """The visible text of a page, a line each."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002  (the parser's own signature)
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._hidden and data.strip():
            self.lines.append(" ".join(data.split()))


def visible_text(page: Path) -> str:
    """The text that a person can read on an HTML page."""
    parser = _Text()
    parser.feed(page.read_text(encoding="utf-8"))
    return "\n".join(parser.lines) + "\n"


def main() -> None:
    """Write the snapshot."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    options = parser.parse_args()
    checkout = options.source.resolve().parent
    environment = {**os.environ, "PYTHONPATH": str(options.source.resolve())}

    def python(*arguments: str | Path, cwd: Path) -> None:
        subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=cwd,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def keep(document: Path, to: Path) -> None:
        # Numbers as written; places of this machine left out.
        text = json.dumps(json.loads(document.read_text(encoding="utf-8")), indent=1)
        to.write_text(re.sub(r"/[^\"]*/(?=(traces|results)/)", "", text), encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (options.out / "traces").mkdir(parents=True, exist_ok=True)
        files = sorted(options.traces.glob("*.json.gz")) if options.traces else []
        ranks = [file for file in files if file.name.startswith("two_ranks")]
        for name, inputs in [
            *((file.name.split(".")[0], [file]) for file in files),
            *([("ranks", ranks)] if ranks else []),
        ]:
            python("-m", "steptrace.cli", "analyze", *inputs, "--out", work / name, cwd=work)
            keep(work / name / "summary.json", options.out / "traces" / f"{name}.json")
            (options.out / "traces" / f"{name}.txt").write_text(visible_text(work / name / "report.html"))
        if options.results:
            shutil.copytree(options.results, work / "results", symlinks=True)
            for study in sorted(path.parent for path in (work / "results").glob("*/study.json")):
                target = options.out / "studies" / study.name
                target.mkdir(parents=True, exist_ok=True)
                scripts = checkout / "workflow" / "scripts"
                runs = sorted(study.glob("*/run*"))
                python(scripts / "analyze_run.py", *runs, cwd=work)
                for run in runs:
                    if run.name == "run0":
                        keep(run / "summary.json", target / f"{run.parent.name}.json")
                compared = study / "comparison.json"
                python(scripts / "compare.py", study.relative_to(work), "--out", compared, cwd=work)
                keep(compared, target / "comparison.json")
                python(scripts / "report.py", "study", study.relative_to(work), "--out", work / "page.html", cwd=work)
                (target / "page.txt").write_text(visible_text(work / "page.html"))


if __name__ == "__main__":
    main()
