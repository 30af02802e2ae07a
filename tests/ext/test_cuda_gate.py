"""The CUDA half, as far as a machine without a GPU can tell: it compiles without a warning, fits its registers, and the
binding that calls it type-checks."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

# Four blocks of 256 threads on a multiprocessor of 65,536 registers; the launch bounds allow float64 twice that.
REGISTERS = {"float": 64, "double": 128}


@pytest.fixture(scope="module")
def nvcc(build: ModuleType) -> str:
    found = build.find_nvcc()
    if found is None:
        pytest.skip("no nvcc in CUDA_HOME, PATH or /usr/local/cuda/bin")
    return found


@pytest.fixture(scope="module")
def ptxas(build: ModuleType, nvcc: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What ptxas says about the kernels; warnings are errors."""
    folder = tmp_path_factory.mktemp("cuda")
    said = ""
    for source in build.KERNELS:
        command = build.kernel_command(nvcc, source, ["90"])
        assert command[command.index("-Werror") + 1] == "all-warnings"
        said += build.run([*command, "-o", str(folder / f"{source}.o")])
    return said


def kernels(ptxas: str) -> dict[str, dict[str, int]]:
    """Registers and bytes of spills by mangled kernel name."""
    table = {}
    for block in ptxas.split("Compiling entry function '")[1:]:
        spills = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", block)
        registers = re.search(r"Used (\d+) registers", block)
        assert spills, block
        assert registers, block
        table[block.split("'")[0]] = {
            "registers": int(registers[1]),
            "spilled": sum(int(group) for group in spills.groups()),
        }
    return table


def test_kernels_spill_nothing_and_fit_their_registers(
    ptxas: str, record_property: Callable[[str, object], None]
) -> None:
    table = kernels(ptxas)
    assert (
        len(table) == 2 * 2 * 11 + 4 + 1
    )  # fused: both passes, aligned or not, 11 pairs of types; the article's; empty
    for name, kernel in table.items():
        # Mangled: the arithmetic's type is the third template parameter; S2_ and its like stand for a repeated one.
        kind = "double" if re.search(r"_kernelId", name) else "float"
        assert kernel["spilled"] == 0, name
        assert kernel["registers"] <= REGISTERS[kind], name
    for kind in ("loss_forward", "loss_backward", "box_forward", "box_backward"):
        counts = sorted(kernel["registers"] for name, kernel in table.items() if kind in name)
        record_property(f"registers of {kind}", f"{counts[0]} to {counts[-1]}")
        print(f"{kind}: {len(counts)} kernels, {counts[0]} to {counts[-1]} registers, no spills")  # noqa: T201 the report


def test_aligned_boxes_are_read_and_written_whole(build: ModuleType, nvcc: str, tmp_path: Path) -> None:
    command = build.kernel_command(nvcc, "giou_kernels.cu", ["90"])
    command[command.index("-c")] = "-ptx"
    command = [part.replace("[sm_90,compute_90]", "compute_90") for part in command if part != "-Xptxas=-v"]
    output = tmp_path / "kernels.ptx"
    build.run([*command, "-o", str(output)])
    text = output.read_text()
    for access in ("ld.global.nc.v4.f32", "ld.global.nc.v4.u16", "ld.global.nc.v4.u8", "ld.global.nc.v2.f64"):
        assert access in text
    for access in ("st.global.v4.f32", "st.global.v4.u16", "st.global.v2.f64"):
        assert access in text


def test_cuda_branch_of_the_binding_type_checks(build: ModuleType) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    tools = build.choose_toolchain("off")
    for cuda in (False, True):
        build.run([*build.binding_command(tools, cuda=cuda), "-Werror", "-fsyntax-only"])


def test_math_header_includes_nothing_and_kernels_no_torch() -> None:
    sources = Path(__file__).resolve().parents[2] / "ext" / "giou" / "csrc"
    assert "#include" not in (sources / "giou_math.h").read_text()
    for name in ("giou_kernels.cu", "giou_workspace.cu", "giou_launch.h", "giou_types.h", "giou_cpu.h", "giou_half.h"):
        assert "torch/" not in re.sub(r"//.*", "", (sources / name).read_text()), name


def test_the_gate_sees_a_warning(build: ModuleType, nvcc: str, tmp_path: Path) -> None:
    source = tmp_path / "warns.cu"
    source.write_text("__global__ void kernel() { int never_used = 1; }\n")
    command = build.kernel_command(nvcc, "giou_workspace.cu", ["90"])
    done = subprocess.run(
        [*[str(source) if part.endswith(".cu") else part for part in command], "-o", str(tmp_path / "o.o")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "never_used" in done.stdout + done.stderr
