"""The idioms of both tables: what each makes the host do on PyTorch's CUDA host code, and what is predicted.

    python tests/idioms.py predict           predicted syncs of every idiom, as JSON lines
    python tests/idioms.py device            warned and traced syncs of every idiom, on the CUDA device that is there

A line of the table is `N  idiom` where PyTorch's warnings, the trace and the prediction agree on N, and
`warned/traced/predicted  idiom  # reason` where they do not. `?` behind the prediction: the prediction says itself
that it may be more. Names like `x`, `b` or `lin` are made by `inputs`.
"""

import copy
import io
import json
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everyone knows it by
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

TABLE = Path(__file__).with_suffix(".txt")
#: More of them, whose launches no estimate counts.
SYNCS_ALONE = TABLE.with_stem("idioms_syncs")
#: From PyTorch 2.14 on the host waits for none of these.
_NO_WAIT_SINCE_2_14 = {
    "torch.combinations(x[:3])",
    "torch.normal(x, q)",
    "torch.normal(0.0, q)",
    "torch.normal(x, q, out=torch.empty(8, device=d))",
}
_LINE = re.compile(r"(?P<counts>[\d/?]+)  (?P<code>.+?)(?:  # (?P<reason>.+))?")


class Counts(NamedTuple):
    """Syncs of one idiom. Without `predicted` it is a measurement of the device, without the others a prediction."""

    warned: int | None
    traced: int | None
    predicted: int | None
    unknown: bool = False
    error: str = ""


class Idiom(NamedTuple):
    """A line of the table."""

    code: str
    expected: Counts
    reason: str | None

    @property
    def agrees(self) -> bool:
        """Whether warnings, trace and prediction say the same, and the prediction is sure of it."""
        counts = self.expected
        return counts.warned == counts.traced == counts.predicted and not counts.unknown


def read_table(path: Path = TABLE) -> list[Idiom]:
    """The lines of the table, as the installed PyTorch answers them."""
    lines = [parse(line) for line in path.read_text().splitlines() if line and not line.startswith("#")]
    changed = _NO_WAIT_SINCE_2_14 if torch.__version__ >= "2.14" else ()
    return [line._replace(expected=Counts(0, 0, 0)) if line.code in changed else line for line in lines]


def read_tables() -> list[Idiom]:
    """The lines of both tables."""
    return [*read_table(), *read_table(SYNCS_ALONE)]


def parse(line: str) -> Idiom:
    """One line of the table."""
    match = _LINE.fullmatch(line)
    assert match is not None, f"not a line of the table: {line!r}"
    parts = match["counts"].rstrip("?").split("/")
    warned, traced, predicted = (int(part) for part in (parts if len(parts) == 3 else parts * 3))
    return Idiom(match["code"], Counts(warned, traced, predicted, match["counts"].endswith("?")), match["reason"])


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, t: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return t * 2

    @staticmethod
    def backward(_ctx: Any, t: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return t * 2


class _Made(torch.autograd.Function):
    """Makes a tensor on the device in its backward."""

    @staticmethod
    def forward(_ctx: Any, t: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return t * 2

    @staticmethod
    def backward(_ctx: Any, t: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return t * 2 + torch.zeros(t.shape, device=t.device)


@torch.library.custom_op("idioms::masked_sum", mutates_args=())
def _masked_sum(t: torch.Tensor) -> torch.Tensor:
    """An operator of a program's own, in Python."""
    return t[t > 0].sum() + torch.tensor(1.0, device=t.device)


def inputs() -> dict[str, Any]:
    """What the idioms are made of: tensors from the host, which hold values also where no kernel computes."""
    d = "cuda"

    def device(values: Any, **options: Any) -> torch.Tensor:
        return torch.as_tensor(values, **options).to(d)

    values: dict[tuple[int, ...], torch.Tensor] = {}

    def g(*shape: int) -> torch.Tensor:
        if shape not in values:
            numbers = torch.linspace(0.5, 2, int(np.prod(shape))).view(shape)
            values[shape] = (numbers + torch.eye(4) if shape == (4, 4) else numbers).to(d)
        return values[shape].clone().requires_grad_()

    def back(function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        result = function(*(g(*shape) for shape in shapes))
        (result[0] if isinstance(result, tuple) else result).sum().backward()

    def trained(make: Any, **options: Any) -> torch.optim.Optimizer:
        parameters = [nn.Parameter(device([0.5] * 8)) for _ in range(2)]
        for parameter in parameters:
            parameter.grad = device([0.25] * 8)
        optimizer: torch.optim.Optimizer = make(parameters, **options)
        return optimizer

    made: dict[str, torch.optim.Optimizer] = {}

    def step(make: Any, *closure: Any, **options: Any) -> None:
        key = f"{make} {options}"
        if key not in made:
            made[key] = trained(make, **options)
        made[key].step(*closure)

    def sparse() -> torch.Tensor:
        return torch.sparse_coo_tensor(torch.zeros(2, 3, dtype=torch.long, device=d), torch.ones(3, device=d), (4, 4))

    x = device([0.5, 1.5, -2.0, 3.0, 0.25, 1.0, 2.5, 4.0])
    m = device([[4.0, 1, 0, 0], [1, 3, 1, 0], [0, 1, 5, 1], [0, 0, 1, 6]])
    seq = device(np.linspace(-1, 1, 24, dtype=np.float32)).view(2, 3, 4)
    img = device(np.linspace(-1, 1, 384, dtype=np.float32)).view(2, 3, 8, 8)
    p = nn.Parameter(x.clone())
    p.grad = x.clone()
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return {
        "d": d, "x": x, "m": m, "seq": seq, "img": img, "p": p, "g": g, "back": back, "step": step,
        "q": device([0.5, 0.25, 0.125, 0.75, 1.0, 0.5, 0.5, 0.1]),
        "b": device([True, False] * 4), "i": device([0, 1, 2, 0, 1, 2, 3, 3]),
        "logits": g(8, 3), "labels": device([0, 1, 2, 0, 1, 2, 0, 1]), "pmask": device([[False, False, True]] * 2),
        "host": torch.ones(8), "pinned": torch.ones(8).pin_memory(),
        "big": torch.ones(1 << 20), "big_pinned": torch.ones(1 << 20).pin_memory(),
        "s": torch.cuda.Stream(), "ev": torch.cuda.Event(enable_timing=True),
        "ev2": torch.cuda.Event(enable_timing=True),
        "scaler": torch.amp.GradScaler("cuda"), "two": torch.amp.GradScaler("cuda"), "lin": nn.Linear(4, 4).to(d),
        "sgd": trained(torch.optim.SGD, lr=0.1),
        "fused": trained(torch.optim.SGD, lr=0.1, fused=True), "adam": trained(torch.optim.Adam),
        "emb": nn.Embedding(10, 4, max_norm=1.0).to(d), "semb": nn.Embedding(10, 4, sparse=True).to(d),
        "bag": nn.EmbeddingBag(10, 4).to(d), "bagmax": nn.EmbeddingBag(10, 4, mode="max").to(d),
        "bn": nn.BatchNorm2d(3, momentum=None).to(d), "mha": nn.MultiheadAttention(4, 2, batch_first=True).to(d),
        "enc": nn.TransformerEncoder(layer, 1).to(d),
        "sn": nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).to(d),
        "sp": sparse,
        "copy": copy, "io": io, "logging": logging, "D": torch.distributions, "F": F, "nn": nn, "np": np,
        "torch": torch, "Pool": ThreadPoolExecutor, "SDPA": sdpa_kernel, "By": SDPBackend,
        "varlen_attn": varlen_attn, "Masked": _masked_sum, "Twice": _Twice, "Made": _Made,
    }  # fmt: skip


def steps(codes: list[str]) -> Iterator[tuple[str, Callable[[], str]]]:
    """Each idiom with a function that runs it and gives its error, or nothing."""
    names = inputs()

    def runs(compiled: Any) -> Callable[[], str]:
        def run() -> str:
            try:
                exec(compiled, names)
            except Exception as error:
                return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:120]}"
            return ""

        return run

    for code in codes:
        yield code, runs(compile(code, "<idiom>", "exec"))


def predict(codes: list[str]) -> dict[str, Counts]:
    """Predicted syncs of each idiom's second run."""
    from steptrace.predict import predict_syncs

    counted = {}
    with warnings.catch_warnings(), predict_syncs() as syncs:
        warnings.simplefilter("ignore")
        for code, run in steps(codes):
            run()
            syncs.reset()
            error = run()
            counted[code] = Counts(None, None, syncs.total, bool(syncs.unknown), error)
    return counted


def measure(codes: list[str]) -> dict[str, Counts]:
    """Warned and traced syncs of each idiom's second run, on the CUDA device that is there."""
    from steptrace.trace.link import read_trace

    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        runs = dict(steps(codes))
        for run in runs.values():
            run()
        torch.cuda.synchronize()
        warned = {}
        with torch.profiler.profile() as profiler:
            for number, (code, run) in enumerate(runs.items()):
                warned[code] = _warnings(run, f"idiom {number}")
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        trace = read_trace(path)
    spans = trace.labels.assign(name=trace.labels["name"].astype(str)).set_index("name")
    at = trace.syncs["ts"].to_numpy()
    counted = {}
    for number, code in enumerate(codes):
        start = int(spans.loc[f"idiom {number}", "ts"])
        end = start + int(spans.loc[f"idiom {number}", "dur"])
        counted[code] = Counts(warned[code][0], int(((at >= start) & (at < end)).sum()), None, error=warned[code][1])
    return counted


def _warnings(run: Callable[[], str], label: str) -> tuple[int, str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with torch.profiler.record_function(label):
                error = run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return count_warnings(caught), error


def count_warnings(caught: list[warnings.WarningMessage]) -> int:
    """How many of some warnings are PyTorch's of a sync."""
    return sum("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)


def main(mode: str) -> None:
    """Write the counts of every idiom of the tables, one JSON object per line."""
    codes = [idiom.code for idiom in read_tables()]
    for code, counts in (predict if mode == "predict" else measure)(codes).items():
        sys.stdout.write(json.dumps({"code": code, **counts._asdict()}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
