"""Where the workflow's files are: Snakefile, workflow/, config/, profiles/, and ext/giou/.

In a checkout they stand beside `src/`; an installed package carries them in its folder `project` (see `setup.py`).
"""

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent
_CARRIED: Final = _PACKAGE / "project"

#: The folder that holds them.
ROOT: Final = _CARRIED if _CARRIED.is_dir() else _PACKAGE.parents[1]
#: For `module` in a Snakefile of one's own, which takes text.
SNAKEFILE: Final = str(ROOT / "Snakefile")
