"""Modules that are compiled: modes, hooks, attributes, kinds of layers, modules inside of others."""

import contextlib
import functools
from typing import Any

import torch
from torch import Tensor, nn

from compile_programs import Compile, program


class Block(nn.Module):
    """A layer, dropout and a shortcut."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layer = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of input and result."""
        result: Tensor = x + self.dropout(self.layer(self.norm(x)).relu())
        return result


def _x(device: str, *shape: int) -> Tensor:
    return torch.ones(*(shape or (2, 8)), device=device)


@program
def training_and_evaluation(device: str, compile: Compile) -> None:
    model = Block().to(device)
    compiled = compile(model)
    for is_training in (True, False, True):
        model.train(is_training)
        compiled(_x(device))


@program
def blocks_compiled_one_by_one(device: str, compile: Compile) -> None:
    model = nn.Sequential(*(Block() for _ in range(4))).to(device)
    for k, block in enumerate(model):
        model[k] = compile(block)
    for _ in range(2):
        model(_x(device)).sum().backward()


@program
def blocks_compiled_in_place(device: str, compile: Compile) -> None:
    model = nn.Sequential(*(Block() for _ in range(4))).to(device)
    options = {"backend": compile.keywords["backend"]} if isinstance(compile, functools.partial) else {}
    for block in model:
        block.compile(**options)
    for _ in range(2):
        model(_x(device)).sum().backward()


@program
def forward_compiled(device: str, compile: Compile) -> None:
    model = Block().to(device)
    model.forward = compile(model.forward)  # type: ignore[method-assign]
    for _ in range(2):
        model(_x(device)).sum().backward()


@program
def forward_decorated(device: str, compile: Compile) -> None:
    class Decorated(Block):
        @compile
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    for model in (Decorated().to(device), Decorated().to(device)):
        model(_x(device)).sum().backward()


class _Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@program
def whole_model(device: str, compile: Compile) -> None:
    compiled = compile(_Tower().to(device))
    for _ in range(2):
        compiled(_x(device)).sum().backward()


@program
def compiled_inside_compiled(device: str, compile: Compile) -> None:
    """A function that is compiled calls one that is compiled."""
    inner = compile(lambda x: x.sin() + 1)
    outer = compile(lambda x: inner(x) * 2)
    outer(_x(device))
    inner(_x(device))


@program
def compiled_block_in_a_compiled_model(device: str, compile: Compile) -> None:
    model = _Tower().to(device)
    model.blocks[1] = compile(model.blocks[1])
    compiled = compile(model)
    for _ in range(2):
        compiled(_x(device)).sum().backward()


@program
def compiled_behind_a_break(device: str, compile: Compile) -> None:
    inner = compile(lambda x: x.sin() + 1)

    def outer(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return inner(y) * 3

    compile(outer)(_x(device))
    inner(_x(device))


@program
def compiled_inside_disabled(device: str, compile: Compile) -> None:
    inner = compile(lambda x: x.sin() + 1)

    @torch.compiler.disable
    def middle(x: Tensor) -> Tensor:
        return inner(x)

    compile(lambda x: middle(x * 2) * 3)(_x(device))


@program
def forward_hook(device: str, compile: Compile) -> None:
    model = Block().to(device)
    model.layer.register_forward_hook(lambda _module, _args, result: result * 2)
    compiled = compile(model)
    for _ in range(2):
        compiled(_x(device))


@program
def forward_hook_that_breaks(device: str, compile: Compile) -> None:
    seen = []
    model = Block().to(device)
    model.layer.register_forward_hook(lambda _module, _args, result: seen.append(result.sum().item()))
    compile(model)(_x(device))


@program
def hook_added_later(device: str, compile: Compile) -> None:
    model = Block().to(device)
    compiled = compile(model)
    compiled(_x(device))
    model.layer.register_forward_hook(lambda _module, _args, result: result * 2)
    compiled(_x(device))


@program
def hook_on_the_compiled_module(device: str, compile: Compile) -> None:
    model = Block().to(device)
    compiled = compile(model)
    compiled.register_forward_hook(lambda _module, _args, result: result * 2)
    compiled(_x(device))


@program
def backward_hook(device: str, compile: Compile) -> None:
    model = Block().to(device)
    model.layer.register_full_backward_hook(lambda _module, _inputs, _outputs: None)
    compile(model)(_x(device)).sum().backward()


@program
def hook_on_a_parameter(device: str, compile: Compile) -> None:
    model = Block().to(device)
    model.layer.weight.register_hook(lambda gradient: gradient * 2)
    compile(model)(_x(device)).sum().backward()


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.layer(x)
        return result


@program
def calls_counted(device: str, compile: Compile) -> None:
    compiled = compile(_Counting().to(device))
    for _ in range(5):
        compiled(_x(device))


class _Warming(_Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * min(1.0, self.calls / 4)


@program
def calls_counted_and_used(device: str, compile: Compile) -> None:
    compiled = compile(_Warming().to(device))
    for _ in range(5):
        compiled(_x(device))


class _Moving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


@program
def buffer_replaced(device: str, compile: Compile) -> None:
    compiled = compile(_Moving().to(device))
    for _ in range(4):
        compiled(_x(device))


@program
def normalised_batches(device: str, compile: Compile) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).to(device)
    compiled = compile(model)
    for is_training in (True, False):
        model.train(is_training)
        compiled(_x(device, 2, 3, 8, 8))


@program
def recurrent(device: str, compile: Compile) -> None:
    model = nn.LSTM(8, 8, batch_first=True).to(device)
    compile(model)(_x(device, 2, 4, 8))


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedded = nn.Embedding(16, 8)
        self.recurrent = nn.GRU(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedded(ids))
        result: Tensor = self.head(states)
        return result


@program
def recurrent_inside(device: str, compile: Compile) -> None:
    compile(_Tagger().to(device))(torch.zeros(4, 2, dtype=torch.long, device=device))


@program
def recurrent_cell(device: str, compile: Compile) -> None:
    cell = nn.GRUCell(8, 8).to(device)

    def unrolled(xs: Tensor, state: Tensor) -> Tensor:
        for x in xs:
            state = cell(x, state)
        return state

    compile(unrolled)(_x(device, 3, 2, 8), _x(device, 2, 8))


@program
def lazy_layer(device: str, compile: Compile) -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU()).to(device)
    compiled = compile(model)
    for _ in range(2):
        compiled(_x(device))


@program
def attention_layer(device: str, compile: Compile) -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=True).to(device)
    x = _x(device, 2, 4, 8)
    compile(model)(x, x, x)


@program
def transformer_encoder(device: str, compile: Compile) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    compiled = compile(model)
    for is_training in (True, False):
        model.train(is_training)
        compiled(_x(device, 2, 4, 8))


class _ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(8)) for _ in range(2))

    def forward(self, x: Tensor, name: str) -> Tensor:
        return sum(self.parts[name](x) * scale for scale in self.scales)  # type: ignore[return-value]


@program
def parts_by_name(device: str, compile: Compile) -> None:
    compiled = compile(_ByName().to(device))
    for name in ("a", "b", "a"):
        compiled(_x(device), name)


class _Skipping(nn.Module):
    """Stochastic depth by Python's or PyTorch's random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if torch.rand(1).item() < 2:
                x = x + layer(x)
        return x


@program
def stochastic_depth(device: str, compile: Compile) -> None:
    compiled = compile(_Skipping().to(device))
    for _ in range(3):
        compiled(_x(device))


class _Outputs(dict):  # type: ignore[type-arg]
    """Results by name, also as attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class _Rich(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.layer(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return _Outputs(logits=logits, loss=loss)


@program
def results_by_name(device: str, compile: Compile) -> None:
    compiled = compile(_Rich().to(device))
    compiled(_x(device), torch.zeros(2, dtype=torch.long, device=device)).loss.backward()
    compiled(_x(device))


@program
def weights_loaded_between(device: str, compile: Compile) -> None:
    model = Block().to(device)
    compiled = compile(model)
    compiled(_x(device))
    model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()})
    compiled(_x(device))


@program
def weight_replaced(device: str, compile: Compile) -> None:
    model = Block().to(device)
    compiled = compile(model)
    compiled(_x(device))
    model.layer.weight = nn.Parameter(torch.zeros(8, 8, device=device))
    compiled(_x(device))


@program
def frozen_later(device: str, compile: Compile) -> None:
    model = Block().to(device)
    compiled = compile(model)
    compiled(_x(device)).sum().backward()
    model.layer.requires_grad_(False)
    compiled(_x(device)).sum().backward()


@program
def layer_replaced(device: str, compile: Compile) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(device)
    compiled = compile(model)
    compiled(_x(device))
    model[1] = nn.GELU()
    compiled(_x(device))


@program
def two_of_one_class(device: str, compile: Compile) -> None:
    for width in (8, 8, 4):
        compile(Block(width).to(device))(_x(device, 2, width))


@program
def method_compiled(device: str, compile: Compile) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def encode(self, x: Tensor) -> Tensor:
            return self.layer(x).relu()  # type: ignore[no-any-return]

    model = Model().to(device)
    model.encode = compile(model.encode)  # type: ignore[method-assign]
    for _ in range(2):
        model.encode(_x(device)).sum().backward()


@program
def submodule_called_by_a_function(device: str, compile: Compile) -> None:
    model = Block().to(device)

    @compile
    def loss_of(x: Tensor) -> Tensor:
        return model(x).square().mean()

    for _ in range(2):
        loss_of(_x(device)).backward()


@program
def module_given(device: str, compile: Compile) -> None:
    run = compile(lambda module, x: module(x) * 2)
    for module in (nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU()):
        run(module.to(device), _x(device))


@program
def parametrized(device: str, compile: Compile) -> None:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)).to(device)
    compiled = compile(model)
    for _ in range(2):
        compiled(_x(device)).sum().backward()


@program
def functional_call(device: str, compile: Compile) -> None:
    model = Block().to(device)
    weights = dict(model.named_parameters())
    run = compile(lambda weights, x: torch.func.functional_call(model, weights, (x,)))
    for _ in range(2):
        run(weights, _x(device))


@program
def scripted_module_inside(device: str, compile: Compile) -> None:
    scripted = torch.jit.script(nn.Linear(8, 8)).to(device)
    compile(lambda x: scripted(x * 2) + 1)(_x(device))


@program
def error_in_a_module(device: str, compile: Compile) -> None:
    compiled = compile(nn.Linear(8, 8).to(device))
    with contextlib.suppress(RuntimeError):
        compiled(_x(device, 2, 5))
    compiled(_x(device))


@program
def lazy_convolution(device: str, compile: Compile) -> None:
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU()).to(device)
    compiled = compile(model)
    for _ in range(3):
        compiled(_x(device, 4, 3, 8, 8)).sum().backward()


@program
def gated_cells_in_a_loop(device: str, compile: Compile) -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            state = torch.zeros(len(x), 8, device=x.device)
            for step in range(x.shape[1]):
                state = self.cell(x[:, step], state)
            return state

    compiled = compile(Cells().to(device))
    for _ in range(2):
        compiled(_x(device, 4, 5, 8)).sum().backward()


@program
def scripted_module_compiled(device: str, compile: Compile) -> None:
    compile(torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU())).to(device))(_x(device))


@program
def traced_module_inside(device: str, compile: Compile) -> None:
    traced = torch.jit.trace(nn.Linear(8, 8).to(device), _x(device))
    compiled = compile(lambda x: traced(x.sin()).cos())
    for _ in range(3):
        compiled(_x(device))


@program
def attribute_of_a_class_hidden(device: str, compile: Compile) -> None:
    class Gain(nn.Module):
        gain = 2

        def forward(self, x: Tensor) -> Tensor:
            return x * self.gain

    model = Gain()
    compiled = compile(model)
    for number in range(3):
        if number:
            model.gain = 3
        compiled(_x(device))


@program
def list_of_a_class_grows(device: str, compile: Compile) -> None:
    class Log(nn.Module):
        seen: list[int] = []  # noqa: RUF012 - that is the case

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(1)
            return x * 2

    compiled = compile(Log())
    for _ in range(3):
        compiled(_x(device))
