"""Make the pages in reports/reference again from their kept results, with the words and pictures of today.

    python docs/reference_pages.py

Measured figures stay as they are. What follows from them is made again: reasons, findings and pages. The title, the
question and the text are those of the study's file.
"""

import sys
from pathlib import Path
from typing import Final

import msgspec
import yaml
from msgspec.structs import replace

from steptrace.documents.base import VERSION_KEY, version_of
from steptrace.documents.comparison import Comparison
from steptrace.files import write_bytes
from steptrace.findings import with_findings
from steptrace.report.index import render_index
from steptrace.report.study.variants import load_study
from steptrace.report.study_page import render_study

ROOT: Final = Path(__file__).parents[1]
REFERENCE: Final = ROOT / "reports" / "reference"


def main() -> int:
    """Make all pages; return the exit code."""
    for machine in sorted(REFERENCE.iterdir()):
        results = sorted(machine.glob("*/comparison.json"))
        for result in results:
            write_compact(result, with_findings(with_texts(load_study(result))))
            page = machine / f"{result.parent.name}.html"
            render_study(result, page)
            sys.stdout.write(f"{page.relative_to(ROOT)}\n")
        render_index(results, machine / "index.html")
        sys.stdout.write(f"{(machine / 'index.html').relative_to(ROOT)}\n")
    return 0


def with_texts(study: Comparison) -> Comparison:
    """The comparison with the texts of its study's file."""
    file = yaml.safe_load((ROOT / "config" / "study" / f"{study.study}.yaml").read_text(encoding="utf-8"))
    return replace(study, title=file["title"], question=file["question"], text=file["text"])


def write_compact(path: Path, study: Comparison) -> None:
    """Write a comparison on one line: nobody reads kept results as text, and indented they are half as large again."""
    content = {VERSION_KEY: version_of(Comparison), **msgspec.to_builtins(study)}
    write_bytes(path, msgspec.json.encode(content) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
