"""The project's documents and their fenced blocks, as tests read them."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS: Final = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "config/README.md", "profiles/README.md")),
    *PAGES,
]
#: Its indentation, its kind, and what it holds.
BLOCK: Final = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def blocks(page: str | Path, *kinds: str) -> list[str]:
    """A page's fenced blocks of these kinds, in its order, as they read without the fence's indentation."""
    matches = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    return [re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, kind, text in matches if kind in kinds]
