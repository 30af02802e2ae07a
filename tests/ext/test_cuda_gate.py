"""The CUDA half, as far as a machine without a GPU can tell: it compiles without a warning, fits its registers, and the
binding that calls it type-checks."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

# Four blocks of 256 threads on a multiprocessor of 65,536 registers; the launch bounds allow float64 twice that.
REGISTERS = {"float": 64, "double": 128}


@pytest.fixture(scope="module")
def nvcc(build):
    compiler = build.find_nvcc()
    if compiler is None:
        pytest.skip("no nvcc in CUDA_HOME, PATH or /usr/local/cuda/bin")
    return compiler


@pytest.fixture(scope="module")
def compiled(build, nvcc, tmp_path_factory):
    """A folder with each source's PTX, and in ptxas.txt what ptxas says about the kernels; warnings are errors."""
    folder = tmp_path_factory.mktemp("cuda")
    output = ""
    for source in build.KERNELS:
        command = build.kernel_command(nvcc, source, ["90"])
        assert command[command.index("-Werror") + 1] == "all-warnings"
        output += build.run([*command, "--keep", "--keep-dir", str(folder), "-o", str(folder / f"{source}.o")])
    (folder / "ptxas.txt").write_text(output)
    return folder


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


def test_kernels_spill_nothing_and_fit_their_registers(compiled):
    table = kernels((compiled / "ptxas.txt").read_text())
    # Fused: both passes, box by box and corner by corner for 11 pairs of types, by the tile where 16 bytes hold several
    # targets (6 pairs); the article's; empty.
    assert len(table) == 2 * (2 * 11 + 6) + 4 + 1
    for name, kernel in table.items():
        # Mangled: the arithmetic's type is the third template parameter; S2_ and its like stand for a repeated one.
        kind = "double" if re.search(r"_kernelId", name) else "float"
        assert kernel["spilled"] == 0, name
        assert kernel["registers"] <= REGISTERS[kind], name


@pytest.fixture(scope="module")
def accesses(compiled):
    """The loads and stores of each kernel of the fused loss by mangled name, in their order, from the PTX."""
    entries = (text.split("(", 1) for text in (compiled / "giou_kernels.ptx").read_text().split(".entry ")[1:])
    return {
        name: re.findall(r"\b(?:ld|st)\.(?:global|shared)[\w.]*", body) for name, body in entries if "loss_" in name
    }


BY_TILE = "AccessE0E"
BY_BOX = "AccessE1E"
BY_ELEMENT = "AccessE2E"
FLOAT_BY_FLOAT = "kernelIfff"


def test_four_wide_loads_of_targets_are_under_way_before_the_first_is_used(accesses):
    kernels = 0
    for name, kernel in accesses.items():
        if BY_TILE not in name and not (FLOAT_BY_FLOAT in name and BY_BOX in name):
            continue
        before = kernel[: next(i for i, access in enumerate(kernel) if access.startswith("st."))]
        scalars = ["ld.global.u64", before[1]] if "backward" in name else []  # valid and grad, used much later
        assert before == [*scalars, *["ld.global.nc.v4.u32"] * 4], name
        kernels += 1
    assert kernels == 2 * (6 + 1)


def test_aligned_boxes_are_read_and_written_whole(accesses):
    whole = {"If": "v4.u32", "I6__half": "v2.u32", "I13__nv_bfloat16": "v2.u32", "Id": "v4.u32"}
    stores = {"If": "v4.f32", "I6__half": "v4.u16", "I13__nv_bfloat16": "v4.u16", "Id": "v2.f64"}
    for name, kernel in accesses.items():
        kind = next(kind for kind in whole if f"_kernel{kind}" in name)
        if BY_ELEMENT not in name:
            assert f"ld.global.nc.{whole[kind]}" in kernel, name
        if "backward" in name:
            assert {access for access in kernel if access.startswith("st.global")} == {f"st.global.{stores[kind]}"}, (
                name
            )


def test_cuda_branch_of_the_binding_type_checks(build):
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    tools = build.choose_toolchain("off")
    build.run([*build.binding_command(tools, cuda=True), "-Werror", "-fsyntax-only"])


def test_math_header_includes_nothing_and_kernels_no_torch():
    sources = Path(__file__).resolve().parents[2] / "ext" / "giou" / "csrc"
    assert "#include" not in (sources / "giou_math.h").read_text()
    for name in ("giou_kernels.cu", "giou_workspace.cu", "giou_launch.h", "giou_types.h", "giou_cpu.h", "giou_half.h"):
        assert "torch/" not in re.sub(r"//.*", "", (sources / name).read_text()), name


def test_the_gate_sees_a_warning(build, nvcc, tmp_path):
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
