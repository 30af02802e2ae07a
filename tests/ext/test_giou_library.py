"""Building, finding and loading the library, and what is said when one of them fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("forked_programs")

PYTHON_PATH = Path(__file__).resolve().parents[2] / "ext" / "giou" / "python"


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(PYTHON_PATH), **environment}
    return subprocess.run([sys.executable, *arguments], env=variables, capture_output=True, text=True, check=False)


LOSS = """
import torch
import steptrace_giou.ops as ops
print(ops.IMPLEMENTATION.name, float(ops.giou_loss(torch.ones(1, 4), torch.ones(1, 4))))
"""


def test_without_a_library_the_twin_runs_and_a_warning_says_so(tmp_path):
    done = python("-c", LOSS, STEPTRACE_GIOU_LIBRARY=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["reference", "1.0"]
    assert "FallbackWarning: steptrace_giou runs its slow Python twin: no library of digest" in done.stderr
    assert str(tmp_path) in done.stderr
    assert "python -m steptrace_giou.build" in done.stderr


def test_a_file_that_is_no_library_is_named_in_the_warning(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    done = python("-c", LOSS, STEPTRACE_GIOU_LIBRARY=str(broken))
    assert done.stdout.split() == ["reference", "1.0"]
    assert f"{broken} cannot be loaded" in done.stderr


def test_a_run_that_must_not_fall_back_fails(tmp_path):
    code = "import steptrace_giou.ops as ops; ops.IMPLEMENTATION.require('cpu')"
    done = python("-c", code, STEPTRACE_GIOU_LIBRARY=str(tmp_path))
    assert done.returncode == 1
    assert "expected a library for cpu; build one with" in done.stderr


def test_the_library_is_found_where_the_variable_says(ops):
    for where in (ops.IMPLEMENTATION.path, ops.IMPLEMENTATION.path.parent):
        done = python(
            "-c", f"import warnings\nwarnings.simplefilter('error')\n{LOSS}", STEPTRACE_GIOU_LIBRARY=str(where)
        )
        assert done.stdout.split() == ["library", "1.0"], done.stderr


def test_require_names_the_missing_device(ops):
    ops.IMPLEMENTATION.require("cpu")
    with pytest.raises(RuntimeError, match="expected a library for tpu"):
        ops.IMPLEMENTATION.require("tpu")


def test_a_changed_source_or_torch_is_another_library(ops, tmp_path, monkeypatch):
    from steptrace_giou import library

    here = library.digest()
    assert library.find(ops.IMPLEMENTATION.path.parent) is not None
    monkeypatch.setattr(library.torch, "__version__", "2.99.0")
    assert library.digest() != here
    monkeypatch.undo()
    for source in library.SOURCES.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(library, "SOURCES", tmp_path)
    assert library.digest() == here
    (tmp_path / "giou_math.h").write_text("// changed\n")
    assert library.digest() != here
    assert library.find(ops.IMPLEMENTATION.path.parent) is None


def test_build_from_nothing_then_not_again(ops, tmp_path):
    """By a compiler that has the library ready: the fixture has had the real one make it."""
    compiler = tmp_path / "quick-cxx"
    find_output = 'while [ "$1" != -o ]; do shift; done'
    compiler.write_text(f'#!/bin/sh\n{find_output}\ncp "{ops.IMPLEMENTATION.path}" "$2"\n')
    compiler.chmod(0o755)
    first = python(
        "-m", "steptrace_giou.build", "--out", str(tmp_path / "new"), "--cuda", "off", CXX=str(compiler)
    )  # fmt: skip
    assert first.returncode == 0, first.stderr
    record = json.loads((tmp_path / "new" / "build.json").read_text())
    library = tmp_path / "new" / record["library"]
    assert library.is_file()
    assert record["kind"] == "cpu"
    assert not record["already_built"]
    assert [path.name for path in library.parent.iterdir() if path.name.startswith(".build")] == []
    written = library.stat().st_mtime_ns
    second = python("-m", "steptrace_giou.build", "--out", str(library.parent), "--cuda", "off")
    assert "was there already" in second.stdout
    loaded = python("-c", LOSS, STEPTRACE_GIOU_LIBRARY=str(library))
    assert loaded.stdout.split() == ["library", "1.0"], loaded.stderr
    assert library.stat().st_mtime_ns == written
    assert ops.IMPLEMENTATION.path != library
    content = library.read_bytes()
    library.write_bytes(content[: len(content) // 2])  # a library that is cut off ends the process by a signal
    damaged = python("-W", "ignore", "-c", LOSS, STEPTRACE_GIOU_LIBRARY=str(library.parent))
    assert damaged.stdout.split()[0] == "reference", damaged.stderr
    again = python("-m", "steptrace_giou.build", "--out", str(library.parent), "--cuda", "off", CXX=str(compiler))
    assert again.returncode == 0, again.stderr
    assert library.read_bytes() == content


def test_a_compiler_error_reaches_the_person_whole(tmp_path):
    compiler = tmp_path / "broken-cxx"
    lines = "\n".join(f"giou_stable.cpp:{n}: error: number {n}" for n in range(200))
    compiler.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{lines}\nEND\nexit 3\n")
    compiler.chmod(0o755)
    done = python("-m", "steptrace_giou.build", "--out", str(tmp_path), "--cuda", "off", CXX=str(compiler))
    assert done.returncode == 1
    assert lines in done.stderr
    assert f"{compiler} -std=c++17" in done.stderr
    assert "exit code 3" in done.stderr
    assert list(tmp_path.glob("*.so")) == []
    assert "Traceback" not in done.stderr


def test_without_a_compiler_the_error_names_what_to_install(tmp_path):
    done = python("-m", "steptrace_giou.build", "--out", str(tmp_path), CXX="no-such-compiler")
    assert done.returncode == 1
    assert "no C++ compiler: no-such-compiler is not on PATH; install g++ 9 or later, or set CXX" in done.stderr


def test_cuda_on_demand_is_never_replaced_by_the_cpu(build, monkeypatch):
    monkeypatch.setattr(build.torch.version, "cuda", None)
    with pytest.raises(build.BuildError, match=r"CUDA cannot be built: torch .* is built without CUDA"):
        build.choose_toolchain("on")
    assert build.choose_toolchain("off").kind == "cpu"


def test_cuda_is_decided_by_compiler_and_torch_and_not_by_a_gpu(build, tmp_path, monkeypatch):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(build.torch.version, "cuda", "13.2")
    monkeypatch.setattr(build.torch.cuda, "is_available", lambda: pytest.fail("a GPU was asked for"))
    assert build.choose_toolchain("auto").nvcc == str(nvcc)
    monkeypatch.setattr(build.torch.version, "cuda", "12.8")
    assert build.choose_toolchain("auto").nvcc is None
    with pytest.raises(build.BuildError, match=r"is CUDA 13 and torch is built for CUDA 12\.8"):
        build.choose_toolchain("on")


def test_architectures_are_those_asked_for(build, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0 8.6+PTX;10.0")
    tools = build.choose_toolchain("off")
    assert tools.architectures == ("86", "90", "100")


def test_the_cuda_runtime_linked_is_torchs_own(build, tmp_path, monkeypatch):
    monkeypatch.setattr(build.torch.version, "cuda", "13.0")
    nvcc = tmp_path / "toolkit" / "bin" / "nvcc"
    tools = build.Toolchain("g++", str(nvcc), tmp_path / "site-packages" / "torch", ("90",))
    with pytest.raises(build.BuildError, match=r"no libcudart\.so\.13 in"):
        build.link_command(tools, [], tmp_path / "out.so")
    places = ["toolkit/lib64", "site-packages/nvidia/cu13/lib", "site-packages/torch/lib"]
    for place in places:  # each is preferred to those before it
        for major in (12, 13):
            runtime = tmp_path / place / f"libcudart.so.{major}"
            runtime.parent.mkdir(parents=True, exist_ok=True)
            runtime.touch()
        command = build.link_command(tools, [], tmp_path / "out.so")
        assert str(runtime) in command
        assert "-ltorch_cuda" in command
