"""The compiled module, which the installation builds from `ext/compiled`."""

from typing import Final

_BUILD: Final = (
    "build it with a C compiler: `python -m pip install --no-deps -e .` in the checkout, or install steptrace again"
)

try:
    from steptrace import _compiled
except ImportError as error:
    raise ImportError(f"steptrace._compiled cannot be imported ({error}); {_BUILD}") from error

compiled = _compiled

#: As VERSION of ext/compiled/module.c: an editable install may hold what an earlier state of the sources gave.
VERSION: Final = 13

if getattr(compiled, "VERSION", None) != VERSION:
    raise ImportError(f"steptrace._compiled was built from other sources than these; {_BUILD}")
