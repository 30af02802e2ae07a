"""Make the README's pictures: first screens of real pages, made from the results in reports/reference.

    python docs/pictures.py

It needs Chromium and the packages that the tests need. Each picture is a PNG of few colours, in docs/pictures/.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import sync_playwright

from steptrace.report.index import render_index
from steptrace.report.study_page import render_study

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "reports" / "reference" / "h100"
PICTURES: Final = ROOT / "docs" / "pictures"
SIZE: Final = (1280, 800)
#: Colours of a picture, and its most bytes: the README is read on slow lines, too.
COLOURS: Final = 48
MOST_BYTES: Final = 60_000


def study(folder: Path) -> Path:
    """The page of a study that was measured on a GPU."""
    page = folder / "masked_loss.html"
    render_study(RESULTS / "masked_loss" / "comparison.json", page)
    return page


def trace(folder: Path) -> Path:
    """The page of the trace that comes with the repository."""
    command = [sys.executable, "-m", "steptrace", "analyze", str(RESULTS / "masked_loss" / "where" / "trace.json.gz")]
    subprocess.run([*command, "--out", str(folder / "trace")], check=True, stdout=subprocess.DEVNULL)
    return folder / "trace" / "report.html"


def index(folder: Path) -> Path:
    """The index of the studies that were measured on a GPU."""
    page = folder / "index.html"
    render_index(sorted(RESULTS.glob("*/comparison.json")), page)
    return page


#: By the name of the picture.
PAGES: Final[dict[str, Callable[[Path], Path]]] = {"study": study, "trace": trace, "index": index}


def main() -> int:
    """Make all pictures; return the exit code."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.stderr.write("error: no Chromium on this machine; next: install Debian's package chromium\n")
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, make in PAGES.items():
            picture = PICTURES / f"{name}.png"
            size = save(browser, make(Path(folder)), picture)
            sys.stdout.write(f"{picture.relative_to(ROOT)}: {size / 1000:.0f} kB\n")
            if size > MOST_BYTES:
                sys.stderr.write(f"error: {picture} is larger than {MOST_BYTES / 1000:.0f} kB; next: fewer COLOURS\n")
                return 1
        browser.close()
    return 0


def save(browser: Any, page: Path, picture: Path) -> int:
    """Take the first screen of a page; return the picture's size in bytes."""
    tab = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
    tab.goto(page.as_uri())
    taken = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    tab.close()
    # Colours are chosen by their range, not by their number: those of small things, such as keys, are kept.
    # Then each is moved to the mean of what has it, so that a page's ground has its own colour.
    few = taken.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    few.save(picture, optimize=True)
    return picture.stat().st_size


if __name__ == "__main__":
    sys.exit(main())
