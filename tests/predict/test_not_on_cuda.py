"""What PyTorch computes on the CPU and not on CUDA fails in a prediction, too, with an error that names it."""

from pathlib import Path

import pytest
import torch
import torchgen
import yaml

from steptrace.predict import cpu_operators, predict_syncs
from steptrace.predict.fault import fault_report
from steptrace.predict.limit import CannotFollowError


def of_the_cpu_alone() -> set[str]:
    """The operators with a kernel for the CPU, none for CUDA, and none that is made of others, by PyTorch's table."""
    folder = Path(torchgen.__file__).parent / "packaged/ATen/native"
    rows = yaml.load((folder / "native_functions.yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    kernels = {row["func"].partition("(")[0]: row for row in rows}
    names = set()
    for name, row in kernels.items():
        row = kernels[row.get("structured_delegate", name)]
        keys = {key.strip() for keys in row.get("dispatch", {}) for key in keys.split(",")}
        on_cpu = any(key in ("CPU", "SparseCPU", "SparseCsrCPU") for key in keys)
        if on_cpu and not any("CUDA" in key or key.startswith("Composite") for key in keys):
            names.add(name)
    return names


def test_the_operators_are_those_of_pytorch_s_table():
    assert cpu_operators.only_on_cpu() == of_the_cpu_alone()
    assert {"histogram.bin_ct", "_sparse_mm_reduce_impl"} <= of_the_cpu_alone()


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    ("compute", "operator"),
    [
        (lambda device: torch.histogram(torch.ones(4, device=device), 4), "aten::histogram.bin_ct"),
        (
            lambda device: torch.histogram(torch.ones(4, device=device), torch.ones(2, device=device)),
            "aten::histogram.bins_tensor",
        ),
        (lambda device: torch.histogramdd(torch.ones(4, 2, device=device), [2, 2]), "aten::_histogramdd_bin_edges"),
        (
            lambda device: torch.sparse.mm(
                torch.eye(3, device=device).to_sparse_csr().requires_grad_(), torch.ones(3, 2, device=device), "sum"
            ).sum().backward(),
            "aten::_sparse_mm_reduce_impl",
        ),
        (
            lambda device: torch.sparse.mm(
                torch.eye(3, device=device).to_sparse_csr(), torch.ones(3, 2, device=device, requires_grad=True), "max"
            ).sum().backward(),
            "aten::_sparse_mm_reduce_impl",
        ),
    ],
)  # fmt: skip
def test_an_operator_of_the_cpu_alone_fails_on_the_device(compute, operator):
    compute("cpu")
    with predict_syncs():
        compute("cpu")
        with pytest.raises(NotImplementedError, match=operator) as raised:
            compute("cuda")
    assert fault_report(raised.value) is None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("multiply", "kernel"),
    [
        (lambda a: a @ a, "addmm_cuda"),
        (lambda a: torch.addmm(a, a, a), "addmm_cuda"),
        (lambda a: torch.einsum("ij,jk->ik", a, a), "baddbmm_cuda"),
        (lambda a: a @ a[0], "addmv_impl_cuda"),
        (lambda a: a[0] @ a[0], "dot"),
    ],
)
def test_a_product_of_whole_numbers_fails_on_the_device(multiply, kernel, dtype):
    with predict_syncs():
        multiply(torch.ones(2, 2, dtype=dtype))
        with pytest.raises(RuntimeError, match=f'"{kernel}" not implemented for') as raised:
            multiply(torch.ones(2, 2, dtype=dtype, device="cuda"))
        assert fault_report(raised.value) is None
        assert multiply(torch.ones(2, 2, device="cuda")).sum().item() > 0
        assert (
            torch.ones(0, 2, dtype=dtype, device="cuda") @ torch.ones(2, 2, dtype=dtype, device="cuda")
        ).numel() == 0


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:The PyTorch API of nested:UserWarning")
@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (lambda: torch.eye(3, device="cuda").to_sparse(), "SparseCUDA"),
        (lambda: torch.eye(3, device="cuda").to_sparse_csr(), "SparseCsrCUDA"),
        (lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], device="cuda"), "NestedTensorCUDA"),
    ],
)
def test_an_operator_that_a_kind_of_tensors_lacks_fails_with_cuda_s_name_of_the_kind(made, kind):
    with predict_syncs():
        tensor = made()
        with pytest.raises(NotImplementedError) as raised:
            tensor.cumsum(1)
    assert f"the '{kind}' backend" in str(raised.value)
    assert fault_report(raised.value) is None


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_product_that_only_cuda_has_for_compressed_sparse_tensors_is_not_said_to_be_missing_there():
    with predict_syncs():
        compressed = torch.eye(3, device="cuda").expand(2, 3, 3).to_sparse_csr()
        with pytest.raises(CannotFollowError):
            torch.bmm(compressed, torch.ones(2, 3, 3, device="cuda"))
