"""One small training in many forms: `forms.py FORM [STEPS]`. Nothing here knows of steptrace."""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn

FORM = sys.argv[1]
STEPS = int(sys.argv[2]) if sys.argv[2:] and sys.argv[2].isdecimal() else 200
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
x = torch.randn(4, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def say(text):
    sys.stdout.write(f"{text}\n")


def loss_of():
    return model(x).square().mean()


def plain(steps=STEPS, after=None):
    for step in range(steps):
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()
        if after is not None:
            after(step)


def loader():
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    for _ in range(STEPS):
        for inputs, targets in torch.utils.data.DataLoader(data, batch_size=16):
            inputs, targets = inputs.to(device), targets.to(device)  # two syncs of one line
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            loss.item()


def workers():  # forked anew for every two steps
    data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
    for _ in range(STEPS):
        for inputs, targets in torch.utils.data.DataLoader(data, batch_size=16, num_workers=1):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs.to(device)), targets.to(device)).backward()
            optimizer.step()


def gan():
    generator = nn.Linear(8, 8).to(device)
    its_optimizer = torch.optim.Adam(generator.parameters())
    for _ in range(STEPS):
        for _ in range(2):  # the critic steps twice as often
            optimizer.zero_grad()
            (model(x).mean() - model(generator(x).detach()).mean()).backward()
            optimizer.step()
        its_optimizer.zero_grad()
        model(generator(x)).mean().backward()
        its_optimizer.step()


def accumulation():
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    for step in range(STEPS):
        for _ in range(2):
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = loss_of() / 2
            if step % 4 == 3:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def lbfgs():
    second = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        second.zero_grad()
        loss = loss_of()
        loss.backward()
        return loss

    for _ in range(STEPS):
        second.step(closure)


def reading_closure():
    def closure():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        loss.item()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def in_backward():
    optimizers = {parameter: torch.optim.SGD([parameter], lr=1e-4) for parameter in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(STEPS):
        loss_of().backward()


def groups():  # as ZeRO does: the step of the inner optimizer once a partition
    for _ in range(STEPS):
        loss_of().backward()
        for _ in range(3):
            optimizer.step()
        optimizer.zero_grad()


def grad():
    for _ in range(STEPS):
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss_of(), list(model.parameters())), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()


def many_batches():
    for _ in range(STEPS):
        for _ in range(60):
            (loss_of() / 60).backward()
        optimizer.step()
        optimizer.zero_grad()


def by_hand():
    for _ in range(STEPS):
        gradients = torch.autograd.grad(loss_of(), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 1e-3 * gradient


def marked():
    import steptrace

    for _ in range(STEPS):
        loss_of().backward()
        steptrace.step()


def swallow():
    try:
        plain()
    except BaseException:
        plain()


def thread():
    work = threading.Thread(target=plain)
    work.start()
    work.join()


def raises():
    def after(step):
        if step == 4:
            raise ValueError("no more")

    plain(after=after)


def reads_and_raises():
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of()
        loss.item()
        if step == 4:
            raise ValueError("no more")
        loss.backward()
        optimizer.step()


def os_exit():
    plain(5)
    os._exit(7)


def slow():
    plain(after=lambda step: say(step) or sys.stdout.flush() or time.sleep(0.1))


def killed():
    """Ends amid a timed step, by a signal that nothing handles, after 20 steps and two seconds at the least."""
    began = time.monotonic()

    def after(step):
        time.sleep(0.1)
        if step >= 20 and time.monotonic() - began > 2.5:
            os.kill(os.getpid(), signal.SIGKILL)

    plain(1000, after=after)


def until_file_exists():
    def after(step):
        if step == 0:
            say(os.getpid())
            sys.stdout.flush()
        time.sleep(0.002)
        if Path(sys.argv[2]).exists():
            sys.exit(3)

    plain(10**9, after)


def noisy():
    plain(after=lambda _: say("x" * 2_000_000))


def leaves_processes():
    for _ in range(2):
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        say(f"left {left.pid}")
    plain()


def own_profiler():
    with torch.profiler.profile():
        plain()


def ranks():
    torch.distributed.init_process_group("gloo")
    wrapped = nn.parallel.DistributedDataParallel(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        wrapped(x).square().mean().backward()
        optimizer.step()


def sharded():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    for layer in (model[0], model[2], model):
        torch.distributed.fsdp.fully_shard(layer, mesh=mesh)
    theirs = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        theirs.zero_grad()
        loss_of().backward()
        theirs.step()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: say("its own signal handler"))
    atexit.register(lambda: say("its own atexit"))
    try:
        globals()[FORM]()
        say("end of the program")
    finally:
        say("its own finally")
        os.kill(os.getpid(), signal.SIGUSR1)
