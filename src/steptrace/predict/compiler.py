"""What a program asks of torch.compile, and one call of the code that it compiles."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from steptrace.estimate.driver import DriverFacts
from steptrace.inductor.lower import GpuFacts
from steptrace.predict.graph_compiler import Backend

#: The backend that fuses.
INDUCTOR: Final = "inductor"
#: PyTorch's backend that launches the operators of a graph as a CUDA graph, and fuses nothing.
_CUDA_GRAPHS: Final = "cudagraphs"
#: Where Inductor's functions are defined, which a program can name as its backend.
_OF_INDUCTOR: Final = ("torch._inductor", "torch._dynamo.backends.inductor")


@dataclass(frozen=True, eq=False)
class Region:
    """One call of a compiled module or function.

    Attributes:
        fuses: whether its backend is Inductor.
        serial: number of the call.
        code: its index in `CompilationState.codes`; None if compiled code is not followed.
        by_program: whether the program compiles it, and not this prediction alone.
    """

    fuses: bool
    serial: int = 0
    code: int | None = None
    by_program: bool = True


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """What the program asks of `torch.compile`.

    Attributes:
        backend: what makes code of graphs; "other" runs their operators one by one.
        name: of a backend that is neither Inductor nor PyTorch's CUDA graphs.
        settings: Inductor's, by name. A mode is a set of them.
        dynamic: the argument `dynamic`.
        fullgraph: the argument `fullgraph`.
        limit: the argument `recompile_limit`.
    """

    backend: Backend = "inductor"
    name: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    fullgraph: bool = False
    limit: int | None = None

    @classmethod
    def from_arguments(cls, backend: Any, options: Mapping[str, Any]) -> "Compiler":
        """By the arguments of `torch._dynamo.optimize`, whose backend is a name, or a function with its settings."""
        function = getattr(backend, "compiler_fn", backend)
        name = backend if isinstance(backend, str) else getattr(backend, "compiler_name", None)
        is_inductor = name == INDUCTOR or str(getattr(function, "__module__", "")).startswith(_OF_INDUCTOR)
        kind: Backend = "inductor" if is_inductor else "cudagraphs" if name == _CUDA_GRAPHS else "other"
        return cls(
            backend=kind,
            name=str(name or getattr(function, "__name__", function)) if kind == "other" else None,
            settings=dict(getattr(backend, "config", None) or {}) if is_inductor else {},
            dynamic=options.get("dynamic"),
            fullgraph=bool(options.get("nopython")),
            limit=options.get("recompile_limit"),
        )

    @property
    def uses_cuda_graphs(self) -> bool:
        """Whether the kernels of a call are launched at once."""
        return self.backend == "cudagraphs" or bool(self._setting("triton.cudagraphs"))

    @property
    def tunes(self) -> bool:
        """Whether Inductor tries several kernels for each product, and takes the quickest."""
        return bool(self._setting("max_autotune") or self._setting("max_autotune_gemm"))

    def _setting(self, name: str) -> Any:
        """A setting of this compiler, or else that of the process."""
        if self.backend != "inductor" or name in self.settings:
            return self.settings.get(name)
        config: Any = importlib.import_module("torch._inductor.config")
        return reduce(lambda owner, part: getattr(owner, part, None), name.split("."), config)

    @property
    def key(self) -> tuple[object, ...]:
        """Code that is compiled with equal keys is shared."""
        return self.backend, self.name, str(sorted(self.settings.items(), key=str)), self.dynamic


def gpu_facts(driver: DriverFacts) -> GpuFacts:
    """The properties of a GPU that Inductor needs."""
    return GpuFacts(
        name=driver.name,
        major=driver.capability[0],
        minor=driver.capability[1],
        multi_processor_count=driver.sms,
        total_memory=driver.memory_bytes,
        max_threads_per_multi_processor=driver.threads,
        shared_memory_per_block_optin=driver.shared_bytes,
        L2_cache_size=driver.l2_bytes,
    )
