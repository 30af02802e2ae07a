"""Which kernels a GPU spent its time in, by name."""

import re
from itertools import combinations

import pandas as pd

from steptrace import intervals, schema
from steptrace.metrics.busy import activity
from steptrace.schema.gpu import KERNEL_NAMES, KERNEL_TYPES
from steptrace.trace.model import Trace

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\{anonymous\}::")
_RETURN_TYPE = re.compile(r"^(?:void|float|int|bool|unsigned int)\s+")
#: Kernels whose own name says only how they loop, and those whose name says nothing at all.
_LOOP = re.compile(r"elementwise|reduce_kernel|foreach|multi_tensor_apply")
_NAMELESS = frozenset({"Kernel", "Kernel2", "kernel", "kernel2", "device_kernel", "globalKernel"})
#: Where in the template arguments it says what is computed.
_FUNCTOR = re.compile(r"\w*Functor\w*|\w+Ops?\b")
_WRAPPERS = frozenset({"UnaryFunctor", "BinaryFunctor", "BUnaryFunctor", "AUnaryFunctor", "OpType", "ReduceOp"})
_FIRST_ARGUMENT = re.compile(r"<(?:\s*\d+,)*\s*(?:\w+::)*(?:gpu_kernel_impl\w*<(?:\w+::)*)?(\w+)")
_SHORT = 60


def kernel_table(trace: Trace, device: int) -> pd.DataFrame:
    """The activities of one GPU by name, the one with the most time first (table `kernel_names`)."""
    kernels = trace.kernels[(trace.kernels["device"] == device).to_numpy()]
    groups = kernels.assign(name=kernels["name"].astype(object), kind=kernels["kind"].astype(object)).groupby(
        ["name", "kind"], sort=True
    )["dur"]
    table = groups.agg(
        count="size", sum_ns="sum", mean_ns="mean", median_ns="median", min_ns="min", max_ns="max", std_ns="std"
    ).reset_index()
    table = table.rename(columns={"kind": "class"})
    table.insert(1, "short_name", [short_name(name) for name in table["name"]])
    total = int(table["sum_ns"].sum())
    table["share"] = table["sum_ns"] / total if total else 0.0
    table = table.sort_values(["sum_ns", "name"], ascending=[False, True], kind="stable").reset_index(drop=True)
    return schema.validate(table, KERNEL_NAMES)


def kernel_types(trace: Trace, device: int) -> pd.DataFrame:
    """How long which classes ran on a GPU, alone and on top of each other (table `kernel_types`)."""
    gpu = activity(trace, device)
    spans = {"compute": gpu.compute, "comm": gpu.comm, "memory": gpu.memory}
    busy = intervals.measure(gpu.busy)
    rows = []
    for size in (1, 2, 3):
        for classes in combinations(spans, size):
            together = gpu.busy
            for name, of_class in spans.items():
                cut = intervals.intersect if name in classes else intervals.subtract
                together = cut(together, of_class)
            if ns := intervals.measure(together):
                rows.append({"classes": " + ".join(classes), "ns": ns, "busy_share": ns / busy})
    table = pd.DataFrame(rows) if rows else schema.empty(KERNEL_TYPES)
    return schema.validate(table, KERNEL_TYPES)


def short_name(name: str) -> str:
    """A kernel's name as a person would say it: no return type, namespaces, template arguments or parameters.

    Of PyTorch's generic kernels the functor is kept, since the name alone says nothing:
    `vectorized_elementwise_kernel [CUDAFunctor_add]`. At most 60 characters; the rest is cut.
    """
    short = telling_name(name)
    return short if len(short) <= _SHORT else short[: _SHORT - 1] + "…"


def telling_name(name: str) -> str:
    """The `short_name` of a kernel at its full length."""
    if name.startswith(("Memcpy", "Memset")):
        return name
    plain = _RETURN_TYPE.sub("", _ANONYMOUS.sub("", name))
    bare = _without(_without(plain, "<", ">"), "(", ")").strip()
    short = bare.split("::")[-1].strip() or bare or name
    if short in _NAMELESS:
        short = _first_argument(plain) or short
    elif _LOOP.search(short):
        arguments = plain[plain.find(short) + len(short) :]
        functor = next((f for f in _FUNCTOR.findall(arguments) if f not in _WRAPPERS), None)
        if telling := functor or _first_argument(plain):
            short = f"{short} [{telling}]"
    return short


def _first_argument(plain: str) -> str | None:
    """The unqualified name that a template's first non-numeric argument begins with."""
    match = _FIRST_ARGUMENT.search(plain)
    return match[1] if match and match[1] not in _WRAPPERS else None


def _without(text: str, opening: str, closing: str) -> str:
    """`text` without what stands between the outermost pairs of brackets; stray brackets stay."""
    kept, depth = [], 0
    for character in text:
        if character == opening:
            depth += 1
        elif character == closing and depth:
            depth -= 1
        elif depth == 0:
            kept.append(character)
    return "".join(kept)
