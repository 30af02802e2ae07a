"""Compile the operators: `python -m steptrace_giou.build [--out DIR] [--cuda auto|on|off]`.

Direct calls of g++ (and nvcc), because that is all it takes: the stable ABI needs one include folder and one library of
torch, no Python header, no build system, and a compiler's complaint reaches the reader untouched. Writes
`steptrace_giou-<digest>-<cpu|cuda>.so` and `build.json` into the folder. Exit code 0, or 1 with the whole complaint.

CUDA is built where there are an nvcc and a torch for CUDA of the same major version; whether a GPU is in the machine
plays no part, so a login node can build for the others.
"""
# ruff: noqa: T201 a command's output is what it prints

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from steptrace_giou.library import DEFAULT_FOLDER, SOURCES, Kind, checksum, digest, file_name, recorded_checksum

STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020b000000000000"  # torch 2.11, the oldest that may load the library
# The gradient of a clamp at its bound is the installed torch's; a library is built for one version of it.
CLAMP = ("-DGIOU_CLAMP_STOPS_AT_BOUND",) if torch.__version__ >= "2.14" else ()
COMMON = ("-std=c++17", "-O3", *CLAMP)
# No contraction to fused multiply-adds: any x86-64 then gives the same bits. Comparisons of NaN raise no trap that
# anyone looks at, and saying so lets the compiler vectorise the clamps.
HOST = (*COMMON, "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno", "-fPIC", "-fvisibility=hidden")
WARNINGS = ("-Wall", "-Wextra")
DEFAULT_ARCHITECTURES = ("80", "90")  # A100 and H100/H200, where no GPU in the machine says otherwise


class BuildError(RuntimeError):
    """The library cannot be built; the message is for a person and holds the compiler's output whole."""


@dataclass(frozen=True)
class Toolchain:
    """What a build needs.

    Attributes:
        cxx: the C++ compiler.
        nvcc: the CUDA compiler, None to build for the CPU alone.
        torch: the installed torch package's folder.
        architectures: compute capabilities without the dot, "90".
    """

    cxx: str
    nvcc: str | None
    torch: Path
    architectures: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """The library's kind."""
        return "cpu" if self.nvcc is None else "cuda"


def find_nvcc() -> str | None:
    """nvcc of CUDA_HOME or CUDA_PATH, of PATH, or of /usr/local/cuda; None if there is none."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    places = [Path(home) / "bin" / "nvcc" for home in homes if home]
    on_path = shutil.which("nvcc")
    places += [Path(on_path)] if on_path else []
    places += [Path("/usr/local/cuda/bin/nvcc")]
    return next((str(place) for place in places if os.access(place, os.X_OK)), None)


def why_no_cuda(nvcc: str | None) -> str | None:
    """The reason why CUDA cannot be built here, None if it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if nvcc is None:
        return "no nvcc in CUDA_HOME, PATH or /usr/local/cuda/bin"
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    release = re.search(r"release (\d+)\.", text)
    if release is None or release[1] != torch.version.cuda.split(".")[0]:
        return f"{nvcc} is CUDA {release[1] if release else 'unknown'} and torch is built for CUDA {torch.version.cuda}"
    return None


def choose_toolchain(cuda: str) -> Toolchain:
    """The compilers for `cuda`: "auto", "on" or "off".

    Raises:
        BuildError: there is no C++ compiler, or CUDA is demanded and cannot be built.
    """
    cxx = shutil.which(os.environ.get("CXX", "g++"))
    if cxx is None:
        raise BuildError(
            f"no C++ compiler: {os.environ.get('CXX', 'g++')} is not on PATH; install g++ 9 or later, or set CXX"
        )
    nvcc = find_nvcc()
    reason = "CUDA is switched off" if cuda == "off" else why_no_cuda(nvcc)
    if reason and cuda == "on":
        raise BuildError(f"CUDA cannot be built: {reason}; leave --cuda at auto to build for the CPU")
    if reason:
        print(f"building for the CPU alone: {reason}")
    return Toolchain(cxx, None if reason else nvcc, Path(torch.__file__).parent, _architectures())


def _architectures() -> tuple[str, ...]:
    """TORCH_CUDA_ARCH_LIST, else the GPUs in the machine, else a default."""
    listed = re.findall(r"(\d+)\.(\d+)", os.environ.get("TORCH_CUDA_ARCH_LIST", ""))
    smi = shutil.which("nvidia-smi")
    if not listed and smi:
        query = [smi, "--query-gpu=compute_cap", "--format=csv,noheader"]
        listed = re.findall(r"(\d+)\.(\d+)", subprocess.run(query, capture_output=True, text=True, check=False).stdout)
    return tuple(sorted({major + minor for major, minor in listed}, key=int)) or DEFAULT_ARCHITECTURES


def binding_command(tools: Toolchain, *, cuda: bool) -> list[str]:
    """The compiler call for the binding, less its input's fate: append `-c -o FILE` or `-fsyntax-only`."""
    define = ["-DUSE_CUDA"] if cuda else []
    include = ["-isystem", str(tools.torch / "include")]
    return [tools.cxx, *HOST, *WARNINGS, STABLE_ABI, *define, *include, str(SOURCES / "giou_stable.cpp")]


def kernel_command(nvcc: str, source: str, architectures: Sequence[str]) -> list[str]:
    """The nvcc call for one .cu file, less `-o FILE`. Warnings are errors, and ptxas reports registers and spills."""
    codes = [f"-gencode=arch=compute_{a},code=[sm_{a},compute_{a}]" for a in architectures]
    host = "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra"
    return [nvcc, *COMMON, *codes, "-Werror", "all-warnings", host, "-Xptxas=-v", "-c", str(SOURCES / source)]


KERNELS = ("giou_kernels.cu", "giou_workspace.cu")


def _cuda_libraries(tools: Toolchain) -> list[str]:
    """torch's CUDA half and the very libcudart that torch uses: two runtimes in a process would not share a device."""
    home = Path(tools.nvcc or "/").resolve().parents[1]
    folders = [tools.torch / "lib", *sorted(tools.torch.parent.glob("nvidia/*/lib")), home / "lib64", home / "lib"]
    major = str(torch.version.cuda).split(".")[0]
    runtimes = [path for folder in folders for path in sorted(folder.glob(f"libcudart*.so.{major}*"))]
    if not runtimes:
        raise BuildError(
            f"no libcudart.so.{major} in {', '.join(map(str, folders))}; "
            "install the CUDA runtime that torch was built for"
        )
    return ["-ltorch_cuda", str(runtimes[0])]


def link_command(tools: Toolchain, objects: Sequence[Path], output: Path) -> list[str]:
    """The linker call. Symbols that nobody defines fail here and not in someone's training."""
    cuda = _cuda_libraries(tools) if tools.nvcc else []
    libraries = ["-L", str(tools.torch / "lib"), "-ltorch_cpu", "-lc10", *cuda]
    checks = ["-Wl,--no-undefined", "-Wl,--allow-shlib-undefined", "-Wl,--as-needed"]
    return [tools.cxx, "-shared", "-o", str(output), *map(str, objects), *libraries, *checks]


def run(command: Sequence[str]) -> str:
    """Run a compiler and return what it said.

    Raises:
        BuildError: it failed; the message is the command and its whole output.
    """
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stdout.rstrip()}\nexit code {done.returncode}")
    return done.stdout


def build(out: Path, tools: Toolchain) -> dict[str, object]:
    """Build into `out`, unless a library of the present digest is there, and return what build.json says.

    Raises:
        BuildError: a compiler failed.
    """
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    target = out / file_name(tools.kind)
    already = target.is_file() and recorded_checksum(target) == checksum(target)  # else it is damaged
    if not already:
        # Beside the target, so that the last step is a rename: another process sees a whole library or none.
        with tempfile.TemporaryDirectory(dir=out, prefix=".build-") as scratch:
            _compile(tools, Path(scratch)).replace(target)
    record: dict[str, object] = {
        "schema_version": 1,
        "library": target.name,
        "sha256": checksum(target),
        "digest": digest(),
        "kind": tools.kind,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if tools.nvcc else None,
        "architectures": list(tools.architectures) if tools.nvcc else [],
        "already_built": already,
        "seconds": round(time.monotonic() - started, 2),
    }
    (out / "build.json").write_text(json.dumps(record, indent=1) + "\n")
    return record


def _compile(tools: Toolchain, scratch: Path) -> Path:
    jobs: list[tuple[list[str], Path]] = []
    binding = scratch / "giou_stable.o"
    jobs.append(([*binding_command(tools, cuda=tools.nvcc is not None), "-c", "-o", str(binding)], binding))
    if tools.nvcc is not None:
        for source in KERNELS:
            output = scratch / f"{source}.o"
            jobs.append(([*kernel_command(tools.nvcc, source, tools.architectures), "-o", str(output)], output))
    for command, _ in jobs:
        print(" ".join(command), flush=True)
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(run, [command for command, _ in jobs]))
    print("".join(said), end="")
    library = scratch / "library.so"
    command = link_command(tools, [output for _, output in jobs], library)
    print(" ".join(command), flush=True)
    print(run(command), end="")
    return library


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m steptrace_giou.build", description="Compile the GIoU operators.")
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_FOLDER, help="folder for the library (default: %(default)s)"
    )
    parser.add_argument(
        "--cuda", choices=("auto", "on", "off"), default="auto", help="whether to compile the CUDA kernels"
    )
    options = parser.parse_args(arguments)
    try:
        record = build(options.out, choose_toolchain(options.cuda))
    except BuildError as error:
        print(f"the extension could not be built:\n{error}", file=sys.stderr)
        return 1
    state = "was there already" if record["already_built"] else f"built in {record['seconds']} s"
    print(f"{options.out / str(record['library'])} {state}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
