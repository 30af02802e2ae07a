"""The parts that were compiled at installation, if they were: everything they do, Python parts do too, more slowly.

With `STEPTRACE_COMPILED=0` in the environment they are left out.
"""

import os
from types import ModuleType


def _load() -> ModuleType | None:
    if os.environ.get("STEPTRACE_COMPILED") == "0":
        return None
    try:
        from steptrace import _compiled
    except ImportError:
        return None
    return _compiled


#: The compiled module, None without one.
compiled = _load()
