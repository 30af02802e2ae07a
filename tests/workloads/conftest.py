"""The extension's operators, built once, for the losses that are made of them."""

import shutil
import sys
from types import ModuleType

import pytest

from steptrace.workloads.giou_kernels import EXTENSION


@pytest.fixture(scope="session")
def extension() -> ModuleType:
    """`steptrace_giou.ops` on a library built from the present sources."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to build the extension with")
    if str(EXTENSION) not in sys.path:
        sys.path.append(str(EXTENSION))
    from steptrace_giou import build, library

    build.build(library.DEFAULT_FOLDER, build.choose_toolchain("auto"))
    from steptrace_giou import ops

    assert ops.IMPLEMENTATION.name == "library", ops.IMPLEMENTATION.reason
    return ops
