"""The parts that were compiled at installation, if they were: everything they do, Python parts do too, more slowly.

With `STEPTRACE_COMPILED=0` in the environment they are left out.
"""

import os
from types import ModuleType
from typing import Final

#: What of the compiled module fits these sources, as in ext/compiled/module.c.
VERSION: Final = 4


def _load() -> ModuleType | None:
    if os.environ.get("STEPTRACE_COMPILED") == "0":
        return None
    try:
        from steptrace import _compiled
    except ImportError:
        return None
    # An editable install may hold what an earlier state of the sources gave.
    return _compiled if getattr(_compiled, "VERSION", None) == VERSION else None


#: The compiled module, None without one.
compiled = _load()


def give_back() -> None:
    """Give free memory back to the system, which the C library keeps otherwise, in case what is needed next fits in."""
    if compiled is not None:
        compiled.trim()
