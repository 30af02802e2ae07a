"""Settings and functions of `torch.compiler` and of Dynamo that change what is compiled."""

from contextlib import suppress

import torch
from torch import Tensor, nn

from compile_programs import Compile, called, program


def _broken(x: Tensor) -> Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


@program
def one_graph_asked_for(device: str, compile: Compile) -> None:
    compile(_broken, fullgraph=True)(torch.ones(8, device=device))


@program
def one_graph_asked_for_and_made(device: str, compile: Compile) -> None:
    compile(lambda x: x.sin() + 1, fullgraph=True)(torch.ones(8, device=device))


@program
def errors_suppressed(device: str, compile: Compile) -> None:
    with torch._dynamo.config.patch(suppress_errors=True):
        compile(_broken)(torch.ones(8, device=device))


@program
def error_on_a_break(device: str, compile: Compile) -> None:
    def function(x: Tensor) -> Tensor:
        with torch._dynamo.error_on_graph_break(True):
            return _broken(x)

    compile(function)(torch.ones(8, device=device))


@program
def error_on_a_recompilation(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled(torch.ones(8, device=device))
        compiled(torch.ones(8, device=device))
        with suppress(torch._dynamo.exc.RecompileError):
            compiled(torch.ones(9, device=device))
        raise_again = compiled(torch.ones(8, device=device))
    del raise_again


@program
def error_on_a_recompilation_reaches_the_program(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in (8, 9):
            compiled(torch.ones(size, device=device))


@program
def error_at_the_limit(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, name: x * len(name))
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for count in range(1, 5):
            compiled(torch.ones(8, device=device), "a" * count)


@program
def error_at_the_limit_for_one_graph(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, name: x * len(name), fullgraph=True)
    with torch._dynamo.config.patch(recompile_limit=2):
        for count in range(1, 5):
            compiled(torch.ones(8, device=device), "a" * count)


@program
def reads_captured(device: str, compile: Compile) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = compile(lambda x: x * x.sum().item())
        for scale in (1.0, 2.0):
            compiled(torch.ones(8, device=device) * scale)


@program
def branch_on_a_captured_read(device: str, compile: Compile) -> None:
    def function(x: Tensor) -> Tensor:
        count = int(x.sum().item())
        return x * 2 if count > 4 else x

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compile(function)(torch.ones(8, device=device))


@program
def shapes_by_data_captured(device: str, compile: Compile) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compile(lambda x: x[x > 0] * 2)(torch.ones(8, device=device))


@program
def checked_read(device: str, compile: Compile) -> None:
    def function(x: Tensor) -> Tensor:
        count = x.sum().long().item()
        torch._check(count >= 0)
        torch._check(count < 100)
        return torch.zeros(count, device=x.device) + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compile(function)(torch.ones(8, device=device))


@program
def sizes_never_dynamic(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        for size in (8, 9, 10):
            compiled(torch.ones(size, device=device))


@program
def sizes_dynamic_by_default(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    with torch._dynamo.config.patch(assume_static_by_default=False):
        for size in (8, 9, 10):
            compiled(torch.ones(size, device=device))


@program
def numbers_dynamic_at_once(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, count: x * count)
    with torch._dynamo.config.patch(specialize_int=True):
        for count in (2, 3, 4):
            compiled(torch.ones(8, device=device), count)


@program
def numbers_constant(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, scale: x * scale)
    with torch._dynamo.config.patch(specialize_float=True):
        for scale in (0.1, 0.2, 0.3):
            compiled(torch.ones(8, device=device), scale)


@program
def forced_eager(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    with torch.compiler.set_stance("force_eager"):
        compiled(torch.ones(8, device=device))
    compiled(torch.ones(8, device=device))


@program
def eager_on_recompile(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    compiled(torch.ones(8, device=device))
    with torch.compiler.set_stance("eager_on_recompile"):
        compiled(torch.ones(9, device=device))
    compiled(torch.ones(9, device=device))


@program
def fail_on_recompile(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    compiled(torch.ones(8, device=device))
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(torch.ones(8, device=device))
        with suppress(RuntimeError):
            compiled(torch.ones(9, device=device))


@program
def eager_then_compile(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    with torch.compiler.set_stance("eager_then_compile"):
        for size in (8, 9, 10):
            compiled(torch.ones(size, device=device))


@program
def reset_between(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    for size in (8, 9):
        compiled(torch.ones(size, device=device))
        torch.compiler.reset()


@program
def dynamo_reset_between(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    for _ in range(2):
        compiled(torch.ones(8, device=device))
        torch._dynamo.reset()


@called()
def asks_whether_it_compiles(x: Tensor) -> Tensor:
    if not torch.compiler.is_compiling():
        torch._dynamo.graph_break()
    return x * 2


@called()
def asks_dynamo_whether_it_compiles(x: Tensor) -> Tensor:
    return x * 2 if torch.compiler.is_dynamo_compiling() else x * x.sum().item()


@called()
def asks_whether_it_exports(x: Tensor) -> Tensor:
    return x * 2 if torch.compiler.is_exporting() else x * 3


@torch.compiler.allow_in_graph
def _allowed(x: Tensor) -> Tensor:
    return x.sin() * 2


@called()
def allowed_in_graph(x: Tensor) -> Tensor:
    return _allowed(x) + 1


@torch.compiler.assume_constant_result
def _constant() -> int:
    return int(torch.ones(2).sum().item())


@called()
def constant_result(x: Tensor) -> Tensor:
    return x * _constant()


@torch._dynamo.nonstrict_trace
def _traced(x: Tensor) -> Tensor:
    return x.sin() * 2


@called()
def traced_loosely(x: Tensor) -> Tensor:
    return _traced(x) + 1


class _WithDisabledPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    @torch.compiler.disable
    def middle(self, x: Tensor) -> Tensor:
        return x / x.norm()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.middle(self.first(x)))
        return result


@program
def disabled_method(device: str, compile: Compile) -> None:
    compiled = compile(_WithDisabledPart().to(device))
    for _ in range(2):
        compiled(torch.ones(2, 8, device=device)).sum().backward()


@program
def disabled_submodule(device: str, compile: Compile) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)).to(device)
    model[1] = torch.compiler.disable(model[1])
    compile(model)(torch.ones(2, 8, device=device)).sum().backward()


@program
def disabled_by_argument(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2, disable=True)
    compiled(torch.ones(8, device=device))


@program
def disabled_in_a_context(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    with torch.compiler.set_stance("force_eager"):
        compiled(torch.ones(8, device=device))


@program
def reduced_overhead(device: str, compile: Compile) -> None:
    compiled = compile(nn.Linear(8, 8).to(device), mode="reduce-overhead")
    for rows in (2, 2, 3):
        compiled(torch.ones(rows, 8, device=device)).sum().backward()


@program
def tuned(device: str, compile: Compile) -> None:
    compiled = compile(nn.Linear(8, 8).to(device), mode="max-autotune-no-cudagraphs")
    compiled(torch.ones(2, 8, device=device)).sum().backward()


@program
def options_given(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x.sin() + 1, options={"epilogue_fusion": False, "max_autotune": True})
    compiled(torch.ones(8, device=device))


@program
def eager_backend(device: str, compile: Compile) -> None:
    compiled = compile(_broken, backend="eager")
    for size in (8, 9, 10):
        compiled(torch.ones(size, device=device))


@program
def two_backends(device: str, compile: Compile) -> None:
    def function(x: Tensor) -> Tensor:
        return x.sin() + 1

    for backend in ("eager", "aot_eager"):
        compile(function, backend=backend)(torch.ones(8, device=device))


@program
def printing_allowed(device: str, compile: Compile) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        print("", end="")
        return y + 1

    with torch._dynamo.config.patch(reorderable_logging_functions={print}):
        compile(function)(torch.ones(8, device=device))


@program
def skipped_guards(device: str, compile: Compile) -> None:
    compiled = compile(nn.Linear(8, 8).to(device))
    with torch.compiler.set_stance("default", skip_guard_eval_unsafe=False):
        for _ in range(2):
            compiled(torch.ones(2, 8, device=device))


@program
def modules_followed_as_before(device: str, compile: Compile) -> None:
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
        model = nn.Linear(8, 8).to(device)
        model.scale = 1  # type: ignore[assignment]
        compiled = compile(lambda x: model(x) * model.scale)
        for scale in (1, 2, 3):
            model.scale = scale  # type: ignore[assignment]
            compiled(torch.ones(2, 8, device=device))
