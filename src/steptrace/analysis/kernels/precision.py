"""In which number formats a GPU computes, and how much of its matrix work runs on tensor cores.

What a kernel's name does not tell, the recorded input types of the operator that launched it may. What neither tells
is `unknown`: a Triton kernel's name holds no types, and a guess would be worse than none.
"""

import re
from typing import Any, Final

import numpy as np
import pandas as pd

from steptrace import schema
from steptrace.analysis.common.analysis import rows
from steptrace.analysis.common.kernel_names import short_names
from steptrace.analysis.kernels.formats import FORMATS, kernel_format
from steptrace.documents.rows import KernelFormat, table_of
from steptrace.documents.summary import Precision
from steptrace.trace.columns import row_numbers, take
from steptrace.trace.model import Trace

#: Operators whose arithmetic is that of tensor cores: matrix products, convolutions, attention, recurrent layers.
_MATRIX_OPS: Final = re.compile(
    r"^aten::(?:mm|mv|addmm|addmv|bmm|baddbmm|addbmm|matmul|linear|einsum|_?scaled_mm|_int_mm|_addmm_activation|"
    r"_?grouped_mm|_scaled_grouped_mm|_cudnn_rnn\w*|_thnn_fused_\w*|"
    r"_?convolution(?:_backward|_overrideable)?|conv\w*|cudnn_convolution\w*|miopen_convolution\w*|"
    r"_conv_depthwise2d\w*|_slow_conv\w*|_?scaled_dot_product\w*|_(?:flash|efficient|cudnn)_attention\w*)\Z"
    r"|attention|flash_attn|fmha|(?<!fb)gemm|matmul",
    re.IGNORECASE,
)

#: An operator's input types as the trace writes them -> width. Integers and scalars are no arithmetic to speak of.
_TYPES: Final = {
    "c10::BFloat16": "bits16",
    "c10::Half": "bits16",
    "float": "bits32",
    "c10::complex<float>": "bits32",
    "double": "bits64",
    "c10::complex<double>": "bits64",
}
#: How many kernels summary.json lists.
MOST: Final = 10
#: What tells one row of `kernel_formats` from another.
_KEYS: Final = ("name", "bits", "by", "tensor_core", "eligible", "tf32")
_NARROW: Final = re.compile(r"^c10::(?:Float8|Float4|Byte|Char)", re.IGNORECASE)

KERNEL_FORMATS = table_of("kernel_formats", KernelFormat, *_KEYS)


def kernel_formats(trace: Trace, device: int) -> pd.DataFrame:
    """The compute kernels of GPU `device` by name, format and use of tensor cores (table `kernel_formats`).

    A kernel is eligible for tensor cores if its name is that of a matrix product, a convolution or attention, or if
    the operator that launched it is one and its name is not that of a helper (layout, split-K sums, elementwise).
    """
    kernels = trace.kernels
    chosen = np.flatnonzero((kernels["device"] == device).to_numpy() & (kernels["kind"] == "compute").to_numpy())
    op = take(row_numbers(trace.launches["op"]), row_numbers(kernels["launch"]))[chosen]
    codes = pd.DataFrame(
        {
            "name": kernels["name"].cat.codes.to_numpy()[chosen],
            "op": take(trace.ops["name"].cat.codes.to_numpy().astype(np.int64), op),
            "types": take(trace.ops["dtypes"].cat.codes.to_numpy().astype(np.int64), op),
            "ns": kernels["dur"].to_numpy()[chosen],
        }
    )
    names, operators, types_of = (
        [str(name) for name in column.cat.categories]
        for column in (kernels["name"], trace.ops["name"], trace.ops["dtypes"])
    )
    # Judged once for each name under each operator: a trace has millions of kernels, and hundreds of these.
    found = codes.groupby(["name", "op", "types"], sort=True)["ns"].agg(count="size", ns="sum").reset_index()
    rows = pd.DataFrame(
        [
            _judged(names[name], "" if of < 0 else operators[of], "" if types < 0 else types_of[types])
            for name, of, types in zip(found["name"], found["op"], found["types"], strict=True)
        ],
        columns=[*_KEYS],
    ).assign(count=found["count"], ns=found["ns"])
    table = rows.groupby([*_KEYS], dropna=False, sort=True)[["count", "ns"]].sum().reset_index()
    table = table.sort_values(["ns", "name"], ascending=[False, True], kind="stable").reset_index(drop=True)
    short = short_names(table["name"])
    table.insert(1, "short_name", pd.Series([short[name] for name in table["name"]], dtype=object))
    table["by"] = table["by"].astype(object).where(table["by"].notna(), None)
    table = table.astype({"eligible": "bool", "tf32": "bool", "count": "int64", "ns": "int64"})
    return schema.validate(table, KERNEL_FORMATS)


def _judged(name: str, op: str, types: str) -> tuple[str, str, str | None, str, bool, bool]:
    """The columns `_KEYS` of a kernel launched by an operator with input types; both empty where not known."""
    said = kernel_format(name)
    bits, by = (said.bits, "name") if said.bits != "unknown" else (type_format(types), "types")
    eligible = said.matrix or (bool(_MATRIX_OPS.search(op)) and not said.helper and bits != "integer")
    return name, bits, None if bits == "unknown" else by, said.tensor_core, eligible, said.tf32


def precision_of(formats: pd.DataFrame) -> Precision:
    """The sums of a table `kernel_formats`, with the kernels with the most time among the eligible."""
    ns, core = formats["ns"], formats["tensor_core"]
    eligible = formats["eligible"].to_numpy(dtype=bool)

    def total(rows: Any) -> int:
        return int(ns[np.asarray(rows, dtype=bool)].sum())

    return Precision(
        kernel_ns={name: total(formats["bits"] == name) for name in FORMATS},
        from_types_ns=total(formats["by"] == "types"),
        tf32_ns=total(formats["tf32"]),
        tensor_core_ns=total(eligible & (core == "yes")),
        tensor_core_eligible_ns=total(eligible),
        tensor_core_no_ns=total(eligible & (core == "no")),
        tensor_core_unknown_ns=total(eligible & (core == "unknown")),
        eligible_16_ns=total(eligible & formats["bits"].isin(["bits8", "bits16"])),
        kernels=rows(formats[eligible].head(MOST), KernelFormat),
    )


def type_format(types: str) -> str:
    """The narrowest floating-point format among an operator's input types (`ops.dtypes`), `unknown` without any.

    With integers alone it stays unknown too: a copy of bytes and an operator on indices look the same.
    """
    parts = types.split(",")
    if any(_NARROW.match(part) and "Float" in part for part in parts):
        return "bits8"
    found = {_TYPES[part] for part in parts if part in _TYPES}
    return next((name for name in FORMATS if name in found), "unknown")
