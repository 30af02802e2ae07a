"""Kernels of CUDA C++ that a program compiles itself (`torch.cuda._compile_kernel`), during a prediction.

Nothing is compiled. A launch is noted, like one of a Triton kernel, and the kernel's results are not computed: all
tensors whose parameters the source does not call `const`.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor

from steptrace.predict import uncomputed
from steptrace.predict.backend import Replacements
from steptrace.predict.pytorch import replacing
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import is_virtual

_REASON: Final = "a CUDA kernel: the host does not wait for its launch, and what it computes is assumed"
#: Bytes of shared memory that a kernel has without asking for more.
_SHARED_BYTES: Final = 48 * 1024


def replacements() -> Replacements:
    """The replacements of the functions that compile kernels at run time; empty if PyTorch has none."""
    return replacing("torch.cuda._compile_kernel", lambda _: _compile)


def _compile(kernel_source: str, kernel_name: str, *_: Any, **__: Any) -> "_Kernel":
    """In place of `torch.cuda._compile_kernel`."""
    if not kernel_source.strip():
        raise ValueError("Kernel source code cannot be empty")
    return _Kernel(kernel_name, _parameters(kernel_source, kernel_name))


def _parameters(source: str, name: str) -> Sequence[str]:
    """The text of each parameter of a kernel; none where the source does not define it."""
    without_comments = re.sub(r"/\*.*?\*/|//[^\n]*", " ", source, flags=re.DOTALL)
    definition = re.search(rf"\b{re.escape(name)}\s*\(([^)]*)\)", without_comments)
    return () if definition is None else definition[1].split(",")


class _Kernel:
    """A kernel after its compilation, which a program launches by a call."""

    def __init__(self, name: str, parameters: Sequence[str]) -> None:
        self._name = name
        self._parameters = parameters
        self._max_shared_mem_bytes = 0

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Let launches ask for so much shared memory."""
        self._max_shared_mem_bytes = shared_mem_bytes

    def __call__(
        self,
        grid: Any = (1, 1, 1),  # noqa: ARG002 - torch's own
        block: Any = (1, 1, 1),  # noqa: ARG002
        args: Sequence[Any] | None = None,
        shared_mem: int = 0,
        stream: Any = None,  # noqa: ARG002
    ) -> None:
        """Launch it.

        Raises:
            ValueError: a tensor lies on the host; PyTorch's own words.
            TypeError: an argument is neither a tensor nor a number.
            RuntimeError: it asks for more shared memory than it may.
        """
        if shared_mem >= _SHARED_BYTES and shared_mem > self._max_shared_mem_bytes:
            raise RuntimeError(
                f"Kernel requires {shared_mem} bytes of shared memory (>= 48KB), but not as much is configured. "
                "Call kernel.set_shared_memory_config(shared_mem) after compilation and before launching the kernel."
            )
        tensors: dict[str, Tensor] = {}
        for place, argument in enumerate(args or ()):
            if isinstance(argument, Tensor):
                if not is_virtual(argument) and not argument.is_pinned():
                    raise ValueError("All tensor arguments must be CUDA tensors or pinned CPU tensors")
                tensors[str(place)] = argument
            elif not isinstance(argument, int | float):
                raise TypeError(f"Unsupported argument type: {type(argument)}")
        written = [place for place in tensors if not self._is_constant(int(place))]
        if Syncs.active is not None:
            Syncs.active.kernel(f"nvrtc::{self._name}", _REASON, tensors, written)
        uncomputed.assume_written([tensors[place]._inner for place in written if is_virtual(tensors[place])])  # type: ignore[attr-defined]

    def _is_constant(self, place: int) -> bool:
        return place < len(self._parameters) and re.search(r"\bconst\b[^*]*\*", self._parameters[place]) is not None
