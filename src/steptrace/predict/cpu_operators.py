"""The operators that PyTorch has for the CPU and not for CUDA.

PyTorch's own table of operators says which they are. It lies beside PyTorch, in the package that makes its code.
"""

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Final

_TABLE: Final = "packaged/ATen/native/native_functions.yaml"
#: The lines of the table that are read: an operator with its overload, the keys of a kernel, and the overload whose
#: kernels stand for those of a function.
_LINE: Final = re.compile(
    r"^- func: (?P<name>[\w.]+)\(|^    (?P<keys>[A-Z]\w+(?:, *\w+)*):|^  structured_delegate: (?P<delegate>[\w.]+)",
    re.MULTILINE,
)
_CPU: Final = frozenset(("CPU", "SparseCPU", "SparseCsrCPU"))


@cache
def only_on_cpu() -> frozenset[str]:
    """The operators of ATen, as "name.overload", that have a kernel for the CPU and none for CUDA, and that are not
    made of other operators. Empty if PyTorch's table is not there.
    """
    package = importlib.util.find_spec("torchgen")
    if package is None or package.origin is None or not (path := Path(package.origin).parent / _TABLE).is_file():
        return frozenset()
    kernels: dict[str, set[str]] = {}
    delegates: dict[str, str] = {}
    name = ""
    for line in _LINE.finditer(path.read_text(encoding="utf-8")):
        if line["name"]:
            name = line["name"]
            kernels[name] = set()
        elif line["delegate"]:
            delegates[name] = line["delegate"]
        else:
            kernels[name].update(key.strip() for key in line["keys"].split(","))
    of_operators = {name: kernels.get(delegates.get(name, name), set()) for name in kernels}
    return frozenset(
        name
        for name, keys in of_operators.items()
        if keys & _CPU and not any("CUDA" in key or key.startswith("Composite") for key in keys)
    )
