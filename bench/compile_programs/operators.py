"""Operators that take functions, operators of the program's own, attention, several ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from compile_programs import Compile, called, program


@called()
def condition(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


@called()
def condition_on_a_size(x: Tensor) -> Tensor:
    return torch.cond(x.shape[0] > 4, lambda y: y.sin(), lambda y: y.cos(), (x,))


@called()
def branches_that_differ(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y[:4].cos(), (x,))


@called(grad=True)
def condition_with_gradients(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,)).sum()


@called()
def loop(x: Tensor) -> Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    start = torch.zeros((), dtype=torch.long, device=x.device)
    _, y = while_loop(lambda k, _: k < 3, lambda k, y: (k + 1, y * 2), (start, x))
    return y + 1


@called()
def mapped(x: Tensor) -> Tensor:
    from torch._higher_order_ops.map import map as map_over

    return map_over(lambda row: row.sin(), x.view(2, 4)).sum()


@called()
def scanned(x: Tensor) -> Tensor:
    from torch._higher_order_ops.scan import scan

    last, _ = scan(lambda a, b: (a + b, a * b), torch.zeros((), device=x.device), x)
    return last * 2


@called()
def scanned_in_pairs(x: Tensor) -> Tensor:
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(torch.add, x, 0, combine_mode="generic") * 2


@called()
def vectorized(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: row.sin().sum())(x.view(2, 4))


@called()
def gradient_of_a_function(x: Tensor) -> Tensor:
    return torch.func.grad(lambda y: y.sin().sum())(x) * 2


@called()
def jacobian(x: Tensor) -> Tensor:
    return torch.func.jacrev(torch.sin)(x).sum()


@called()
def forward_gradient(x: Tensor) -> Tensor:
    result, tangent = torch.func.jvp(torch.sin, (x,), (x,))
    return result + tangent


@called()
def hessian(x: Tensor) -> Tensor:
    return torch.func.hessian(lambda y: y.sin().sum())(x).sum()


@torch.library.custom_op("compile_programs::doubled", mutates_args=())
def _doubled(x: Tensor) -> Tensor:
    return x * 2


@_doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@called()
def own_operator(x: Tensor) -> Tensor:
    return _doubled(x + 1) + 1


@torch.library.custom_op("compile_programs::tripled", mutates_args=())
def _tripled(x: Tensor) -> Tensor:
    return x * 3


@called()
def own_operator_without_shapes(x: Tensor) -> Tensor:
    return _tripled(x + 1) + 1


@torch.library.custom_op("compile_programs::filled", mutates_args=("x",))
def _filled(x: Tensor) -> None:
    x.fill_(2)


@called()
def own_operator_in_place(x: Tensor) -> Tensor:
    y = x * 3
    _filled(y)
    return y + 1


@torch.library.custom_op("compile_programs::scaled", mutates_args=())
def _scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


@_scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:  # noqa: ARG001 - the operator's
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001 - PyTorch's
    ctx.factor = inputs[1]


_scaled.register_autograd(lambda ctx, gradient: (gradient * ctx.factor, None), setup_context=_setup)


@called(grad=True)
def own_operator_with_gradients(x: Tensor) -> Tensor:
    return _scaled(x + 1, 2.0).sum()


@program
def own_operator_with_numbers(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, factor: _scaled(x, factor) + 1)
    for factor in (2.0, 3.0, 4.0):
        compiled(torch.ones(8, device=device), factor)


def _heads(device: str, length: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    first, second, third = (torch.ones(1, 2, length, 16, device=device) for _ in range(3))
    return first, second, third


@program
def attention(device: str, compile: Compile) -> None:
    compiled = compile(lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    for length in (16, 32, 48):
        compiled(*_heads(device, length))


@program
def attention_by_one_kernel(device: str, compile: Compile) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return nn.functional.scaled_dot_product_attention(q, k, v)

    compile(function)(*_heads(device))


@program
def flexible_attention(device: str, compile: Compile) -> None:
    compiled = compile(lambda q, k, v: flex_attention(q, k, v).sum())
    compiled(*_heads(device, 128))


@program
def flexible_attention_with_a_score(device: str, compile: Compile) -> None:
    def biased(score: Tensor, _b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score + (q - k)

    compiled = compile(lambda q, k, v: flex_attention(q, k, v, score_mod=biased).sum())
    compiled(*_heads(device, 128))


@program
def flexible_attention_with_a_mask(device: str, compile: Compile) -> None:
    mask = create_block_mask(lambda _b, _h, q, k: q >= k, None, None, 128, 128, device=device)
    compiled = compile(lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask).sum())
    compiled(*_heads(device, 128), mask)


@program
def region_compiled_once(device: str, compile: Compile) -> None:
    @torch.compiler.nested_compile_region
    def block(x: Tensor) -> Tensor:
        return x.sin() + 1

    compile(lambda x: block(block(x)) * 2)(torch.ones(8, device=device))


@called()
def sums_of_lists(x: Tensor) -> Tensor:
    parts = torch._foreach_add([x, x * 2], 1.0)
    return parts[0] + parts[1]


@called()
def complex_numbers(x: Tensor) -> Tensor:
    return torch.fft.rfft(x).abs() * 2


@called()
def linear_algebra(x: Tensor) -> Tensor:
    return torch.linalg.svd(x.view(2, 4) + 1, full_matrices=False).S


@called()
def least_squares(x: Tensor) -> Tensor:
    return torch.linalg.lstsq(x.view(4, 2) + torch.rand(4, 2, device=x.device), x[:4, None]).solution


@called()
def einsum(x: Tensor) -> Tensor:
    return torch.einsum("ij,kj->ik", x.view(2, 4), x.view(2, 4))


@called()
def sorted_and_taken(x: Tensor) -> Tensor:
    values, places = x.sort(descending=True)
    return values.cumsum(0) + places


@called()
def most_likely(x: Tensor) -> Tensor:
    values, places = x.softmax(0).topk(3)
    return values * places


@called()
def drawn(x: Tensor) -> Tensor:
    return x.softmax(0).multinomial(1) * 2


@called()
def random_tensors(x: Tensor) -> Tensor:
    return x + torch.randn_like(x) + torch.randperm(8, device=x.device)


@called()
def ragged(x: Tensor) -> Tensor:
    nested = torch.nested.nested_tensor([x[:3], x[:5]], layout=torch.jagged)
    return nested.sin().values().sum()


@called()
def list_of_lengths(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x[:3], x[:5]]).to_padded_tensor(0.0)


@called((8,), (9,), (10,), dynamic=True)
def lengths_of_sequences(x: Tensor) -> Tensor:
    ends = torch.tensor([0, 3, x.shape[0]], device=x.device)
    return x.cumsum(0)[ends[1:] - 1]


@program
def sequence_lengths_given(device: str, compile: Compile) -> None:
    """Packed sequences, split by lengths that are a list."""
    compiled = compile(lambda x, lengths: [part * 2 for part in x.split(lengths)], dynamic=True)
    for lengths in ([3, 5], [4, 4], [2, 6]):
        compiled(torch.ones(8, device=device), lengths)


@program
def largest_length_given(device: str, compile: Compile) -> None:
    """The arguments of an attention of variable lengths."""

    def attended(x: Tensor, ends: Tensor, longest: int) -> Tensor:
        places = torch.arange(longest, device=x.device)
        mask = places[None] < ends.diff()[:, None]
        return x.sum() * mask

    compiled = compile(attended, dynamic=True)
    for longest, ends in ((5, [0, 3, 8]), (4, [0, 4, 8]), (6, [0, 2, 8])):
        compiled(torch.ones(8, device=device), torch.tensor(ends, device=device), longest)


class _Ranks:
    """A process group of one rank."""

    def __init__(self, device: str) -> None:
        self.kind = "gloo" if device == "cpu" else "nccl"

    def __enter__(self) -> None:
        dist.init_process_group(self.kind, store=dist.HashStore(), rank=0, world_size=1)

    def __exit__(self, *_: object) -> None:
        dist.destroy_process_group()


@program
def data_parallel(device: str, compile: Compile) -> None:
    with _Ranks(device):
        model = nn.parallel.DistributedDataParallel(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).to(device)
        )
        compiled = compile(model)
        for _ in range(2):
            compiled(torch.ones(2, 8, device=device)).sum().backward()


@program
def data_parallel_around_compiled(device: str, compile: Compile) -> None:
    with _Ranks(device):
        inner = compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).to(device))
        model = nn.parallel.DistributedDataParallel(inner)
        for _ in range(2):
            model(torch.ones(2, 8, device=device)).sum().backward()


@program
def data_parallel_with_small_buckets(device: str, compile: Compile) -> None:
    with _Ranks(device):
        layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).to(device)
        model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=1)  # type: ignore[arg-type]
        compiled = compile(model)
        for _ in range(2):
            compiled(torch.ones(2, 256, device=device)).sum().backward()


@program
def summed_over_ranks(device: str, compile: Compile) -> None:
    with _Ranks(device):

        def function(x: Tensor) -> Tensor:
            y = x * 2
            dist.all_reduce(y)
            return y + 1

        compile(function)(torch.ones(8, device=device))


@program
def summed_meanwhile(device: str, compile: Compile) -> None:
    with _Ranks(device):

        def function(x: Tensor) -> Tensor:
            y = x * 2
            work = dist.all_reduce(y, async_op=True)
            z = x.sin()
            work.wait()
            return y + z

        compile(function)(torch.ones(8, device=device))


@program
def gathered(device: str, compile: Compile) -> None:
    with _Ranks(device):

        def function(x: Tensor) -> Tensor:
            parts = [torch.empty_like(x)]
            dist.all_gather(parts, x * 2)
            return parts[0] + dist.get_world_size() + dist.get_rank()

        compile(function)(torch.ones(8, device=device))


@program
def waited_for_ranks(device: str, compile: Compile) -> None:
    with _Ranks(device):

        def function(x: Tensor) -> Tensor:
            y = x * 2
            dist.barrier()
            return y + 1

        compile(function)(torch.ones(8, device=device))


@program
def sparse_given(device: str, compile: Compile) -> None:
    compiled = compile(lambda matrix, x: matrix @ x + 1)
    for matrix in (torch.eye(8).to_sparse(), torch.eye(8).to_sparse_csr()):
        compiled(matrix.to(device), torch.ones(8, 4, device=device))


@program
def generator_of_random_numbers_given(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, generator: x + torch.rand(4, 8, device=x.device, generator=generator))
    generator = torch.Generator(device=device)
    for _ in range(2):
        compiled(torch.ones(4, 8, device=device), generator)
