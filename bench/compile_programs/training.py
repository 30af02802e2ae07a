"""Training steps: what of a step is compiled, and what changes between steps."""

import contextlib
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from compile_programs import Compile, program
from compile_programs.modules import Block


def _model(device: str) -> nn.Module:
    return nn.Sequential(Block(), Block(), nn.Linear(8, 2)).to(device)


def _batch(device: str, rows: int = 4) -> tuple[Tensor, Tensor]:
    return torch.ones(rows, 8, device=device), torch.zeros(rows, dtype=torch.long, device=device)


def _optimizer(model: nn.Module, kind: Any = torch.optim.AdamW, **options: Any) -> Any:
    return kind(model.parameters(), lr=options.pop("lr", 1e-3), foreach=False, **options)


@program
def model_compiled(device: str, compile: Compile) -> None:
    model = _model(device)
    compiled = compile(model)
    adam = _optimizer(model)
    for _ in range(3):
        x, y = _batch(device)
        nn.functional.cross_entropy(compiled(x), y).backward()
        adam.step()
        adam.zero_grad()


@program
def loss_compiled(device: str, compile: Compile) -> None:
    model = _model(device)
    loss_of = compile(nn.CrossEntropyLoss())
    for _ in range(3):
        x, y = _batch(device)
        loss_of(model(x), y).backward()


@program
def forward_and_loss_compiled(device: str, compile: Compile) -> None:
    model = _model(device)

    @compile
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), y)

    adam = _optimizer(model)
    for _ in range(3):
        loss_of(*_batch(device)).backward()
        adam.step()
        adam.zero_grad()


@program
def whole_step_compiled(device: str, compile: Compile) -> None:
    model = _model(device)
    adam = _optimizer(model)

    @compile
    def step(x: Tensor, y: Tensor) -> Tensor:
        adam.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        adam.step()
        return loss

    for _ in range(3):
        step(*_batch(device))


@program
def whole_step_with_sgd(device: str, compile: Compile) -> None:
    model = _model(device)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    @compile
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        sgd.step()
        sgd.zero_grad()
        return loss.detach()

    for _ in range(3):
        step(*_batch(device))


@program
def whole_step_with_arguments(device: str, compile: Compile) -> None:
    @compile
    def step(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    model = _model(device)
    adam = _optimizer(model)
    for _ in range(3):
        step(model, adam, *_batch(device))


@program
def whole_step_that_reads_its_loss(device: str, compile: Compile) -> None:
    model = _model(device)
    adam = _optimizer(model)

    @compile
    def step(x: Tensor, y: Tensor) -> float:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        adam.step()
        adam.zero_grad()
        return loss.item()

    for _ in range(3):
        step(*_batch(device))


@program
def forward_and_backward_compiled(device: str, compile: Compile) -> None:
    model = _model(device)
    adam = _optimizer(model)

    @compile
    def gradients(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        gradients(*_batch(device))
        adam.step()
        adam.zero_grad()


@program
def optimizer_compiled(device: str, compile: Compile) -> None:
    model = _model(device)
    adam = _optimizer(model)

    @compile
    def update() -> None:
        adam.step()

    for _ in range(3):
        x, y = _batch(device)
        nn.functional.cross_entropy(model(x), y).backward()
        update()
        adam.zero_grad()


@program
def optimizer_method_compiled(device: str, compile: Compile) -> None:
    model = _model(device)
    adam = _optimizer(model)
    adam.step = compile(adam.step)
    for _ in range(3):
        x, y = _batch(device)
        nn.functional.cross_entropy(model(x), y).backward()
        adam.step()
        adam.zero_grad()


@program
def optimizer_with_closure(device: str, compile: Compile) -> None:
    model = _model(device)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    x, y = _batch(device)

    def closure() -> Tensor:
        sgd.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    step = compile(lambda: sgd.step(closure))
    for _ in range(2):
        step()


@program
def rate_as_a_tensor(device: str, compile: Compile) -> None:
    model = _model(device)
    adam = _optimizer(model, lr=torch.tensor(1e-3))
    schedule = torch.optim.lr_scheduler.ExponentialLR(adam, 0.9)
    step = compile(adam.step)
    for _ in range(3):
        x, y = _batch(device)
        nn.functional.cross_entropy(model(x), y).backward()
        step()
        schedule.step()


@program
def gradients_clipped(device: str, compile: Compile) -> None:
    model = _model(device)
    compiled = compile(model)
    adam = _optimizer(model)
    clip = compile(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False))
    for _ in range(2):
        x, y = _batch(device)
        nn.functional.cross_entropy(compiled(x), y).backward()
        clip()
        adam.step()
        adam.zero_grad()


@program
def averaged_weights(device: str, compile: Compile) -> None:
    model = _model(device)
    average = _model(device)

    @compile
    @torch.no_grad()
    def update(decay: float) -> None:
        for target, source in zip(average.parameters(), model.parameters(), strict=True):
            target.lerp_(source, 1 - decay)

    for decay in (0.9, 0.9, 0.99):
        update(decay)


@program
def gradients_accumulated(device: str, compile: Compile) -> None:
    model = _model(device)
    compiled = compile(model)
    adam = _optimizer(model)
    for step in range(4):
        x, y = _batch(device)
        (nn.functional.cross_entropy(compiled(x), y) / 2).backward()
        if step % 2:
            adam.step()
            adam.zero_grad()


@program
def evaluated_between(device: str, compile: Compile) -> None:
    model = _model(device)
    compiled = compile(model)
    adam = _optimizer(model)
    for _ in range(2):
        model.train()
        x, y = _batch(device)
        nn.functional.cross_entropy(compiled(x), y).backward()
        adam.step()
        adam.zero_grad()
        model.eval()
        with torch.no_grad():
            compiled(_batch(device, 6)[0])


@program
def half_precision(device: str, compile: Compile) -> None:
    model = _model(device)
    compiled = compile(model)
    adam = _optimizer(model)
    for _ in range(2):
        x, y = _batch(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(compiled(x), y)
        loss.backward()
        adam.step()
        adam.zero_grad()


@program
def autocast_inside(device: str, compile: Compile) -> None:
    model = _model(device)

    @compile
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        return nn.functional.cross_entropy(logits.float(), y)

    for _ in range(2):
        loss_of(*_batch(device)).backward()


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


@program
def checkpointed(device: str, compile: Compile) -> None:
    compiled = compile(_Checkpointed().to(device))
    for _ in range(2):
        compiled(torch.ones(2, 8, device=device)).sum().backward()


@program
def compiled_blocks_checkpointed(device: str, compile: Compile) -> None:
    blocks = [compile(Block().to(device)) for _ in range(2)]
    x = torch.ones(2, 8, device=device)
    for _ in range(2):
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False)
        y.sum().backward()


@program
def checkpoint_that_breaks(device: str, compile: Compile) -> None:
    layer = nn.Linear(8, 8).to(device)

    def inner(x: Tensor) -> Tensor:
        y = layer(x)
        torch._dynamo.graph_break()
        return y.relu()

    compiled = compile(lambda x: checkpoint(inner, x, use_reentrant=False) * 2)
    compiled(torch.ones(2, 8, device=device)).sum().backward()


@program
def two_models(device: str, compile: Compile) -> None:
    """A generator and a discriminator, compiled by themselves."""
    made = nn.Linear(8, 8).to(device)
    judged = nn.Linear(8, 1).to(device)
    generator = compile(made)
    judge = compile(judged)
    for _ in range(2):
        noise = torch.ones(4, 8, device=device)
        judge(generator(noise).detach()).mean().backward()
        judged.requires_grad_(False)
        judge(generator(noise)).mean().backward()
        judged.requires_grad_(True)


@program
def teacher_and_student(device: str, compile: Compile) -> None:
    teacher = compile(_model(device).eval())
    student = compile(_model(device))
    for _ in range(2):
        x, _ = _batch(device)
        with torch.no_grad():
            wanted = teacher(x)
        nn.functional.mse_loss(student(x), wanted).backward()


@program
def loss_logged_each_step(device: str, compile: Compile) -> None:
    model = _model(device)

    @compile
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        if loss.isnan():
            raise RuntimeError("diverged")
        return loss

    for _ in range(2):
        loss_of(*_batch(device)).backward()


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * ctx.factor + 0 * x, None


@program
def own_autograd_function(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: _Scaled.apply(x * 2, 3.0).sin())
    for _ in range(2):
        compiled(torch.ones(8, device=device, requires_grad=True)).sum().backward()


class _Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


@program
def autograd_function_in_place(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: _Dirty.apply(x * 2).sin())
    compiled(torch.ones(8, device=device, requires_grad=True)).sum().backward()


class _Reading(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x * x.sum().item()

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@program
def autograd_function_that_reads(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: _Reading.apply(x * 2).sin())
    compiled(torch.ones(8, device=device, requires_grad=True)).sum().backward()


@program
def learned_rate_changes(device: str, compile: Compile) -> None:
    model = _model(device)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    step = compile(sgd.step)
    for _ in range(3):
        x, y = _batch(device)
        nn.functional.cross_entropy(model(x), y).backward()
        step()
        sgd.param_groups[0]["lr"] *= 0.5
        sgd.zero_grad()


@program
def gradients_by_function(device: str, compile: Compile) -> None:
    model = _model(device)
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}

    def loss_of(weights: Any, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(model.eval(), weights, (x,)), y)

    compiled = compile(torch.func.grad(loss_of))
    for _ in range(2):
        compiled(weights, *_batch(device))


@program
def gradient_penalty(device: str, compile: Compile) -> None:
    model = nn.Linear(8, 1).to(device)

    @compile
    def penalty(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return gradient.norm(2, dim=1).sub(1).square().mean()

    with contextlib.suppress(RuntimeError):
        penalty(torch.ones(4, 8, device=device, requires_grad=True)).backward()


@program
def mean_of_losses_kept(device: str, compile: Compile) -> None:
    model = _model(device)
    totals: list[Tensor] = []

    @compile
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        totals.append(loss.detach())
        return loss

    for _ in range(3):
        loss_of(*_batch(device)).backward()


@program
def rows_that_change(device: str, compile: Compile) -> None:
    model = _model(device)
    adam = _optimizer(model)

    @compile
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for rows in (4, 4, 3):
        step(*_batch(device, rows))
        adam.step()
        adam.zero_grad()


@program
def options_by_decorator(device: str, compile: Compile) -> None:
    @functools.partial(compile, dynamic=False)
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).square().mean()

    for rows in (4, 5):
        loss_of(torch.ones(rows, device=device, requires_grad=True), torch.ones(rows, device=device)).backward()
