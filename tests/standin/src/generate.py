"""Writes the stand-ins' generated sources.

    generate.py ids CUDA_INCLUDE OUT                    cbid.h: CUPTI's numbers and names of API calls
    generate.py stubs TORCH_LIB SOURCE_DIR OUT_DIR      a C file and a version script per library that PyTorch links to

A stub returns 0. What its name says it does besides: make a handle, note a handle's stream, launch a kernel on it, say
that a workspace needs 0 bytes. What needs more than that is written by hand in SOURCE_DIR and left out here.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

BY_PREFIX = {
    "cusparseLt": "libcusparseLt.so.0",
    "nccl": "libnccl.so.2",
    "cuFile": "libcufile.so.0",
    "nvshmem": "libnvshmem_host.so.3",
}
OURS = re.compile(r"^lib(cu|nv)")
EMPTY = ["libcurand.so.10"]
# Libraries whose functions fail instead of doing nothing where they are not written by hand.
REFUSING = {"libcudart.so.13": 801, "libcuda.so.1": 801, "libnvshmem_host.so.3": 7}
# Looked up by name while the program runs.
LOOKED_UP = {
    "libcuda.so.1": [
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuMemRetainAllocationHandle",
        "cuMemGetAllocationPropertiesFromHandle",
        "cuMulticastAddDevice",
        "cuMulticastBindMem",
        "cuMulticastCreate",
        "cuMulticastUnbind",
        "cuStreamWriteValue32",
        "cuCtxFromGreenCtx",
        "cuDevResourceGenerateDesc",
        "cuDevSmResourceSplitByCount",
        "cuDeviceGetDevResource",
        "cuGreenCtxCreate",
        "cuGreenCtxDestroy",
        "cuGreenCtxStreamCreate",
    ]
}
# (function, index of the argument that points to the answer, bytes of the answer): all answered by 0.
ANSWERS = [
    (r"cublasGet(Math|Pointer)Mode", 1, 4),
    (r"cusolverDn[SDCZ](geqrf|getrf|potrf)_bufferSize", 5, 4),
    (r"cusolverDn[SDCZ]sytrf_bufferSize", 4, 4),
    (r"cusolverDn[SDCZ]gesvd_bufferSize", 3, 4),
    (r"cusolverDn[SDCZ]gesvdj_bufferSize", 12, 4),
    (r"cusolverDn[SDCZ]gesvdjBatched_bufferSize", 11, 4),
    (r"cusolverDn[SDCZ]gesvdaStridedBatched_bufferSize", 16, 4),
    (r"cusolverDn[SDCZ](sy|he)evjBatched_bufferSize", 7, 4),
    (r"cusolverDnXpotrf_bufferSize", 8, 8),
    (r"cusolverDnXpotrf_bufferSize", 9, 8),
    (r"cusolverDnXgeqrf_bufferSize", 10, 8),
    (r"cusolverDnXgeqrf_bufferSize", 11, 8),
    (r"cusolverDnX(syevd|syevBatched|sytrs)_bufferSize", 11, 8),
    (r"cusolverDnX(syevd|syevBatched|sytrs)_bufferSize", 12, 8),
    (r"cusolverDnXgeev_bufferSize", 17, 8),
    (r"cusolverDnXgeev_bufferSize", 18, 8),
    (r"cusolverDn[SDCZ](syevd|heevd|orgqr|ungqr)_bufferSize", 7, 4),
    (r"cusolverDn[SDCZ](ormqr|unmqr)_bufferSize", 11, 4),
    (r"cusparseSp(MM|SM)_bufferSize", 10, 8),
    (r"cusparseSp(MV|SV)_bufferSize", 9, 8),
    (r"cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize", 8, 8),
    (r"cudnnGetBatchNormalizationBackwardExWorkspaceSize", 10, 8),
    (r"cudnnGetBatchNormalizationTrainingExReserveSpaceSize", 5, 8),
    (r"cudnnGetConvolution\w+WorkspaceSize", 6, 8),
    (r"cudnnGetConvolution\w+Algorithm_v7", 7, 64),
    (r"cudnnGetRNNTempSpaceSizes", 4, 8),
    (r"cudnnGetRNNTempSpaceSizes", 5, 8),
    (r"cudnnDropoutGetStatesSize", 1, 8),
    (r"nccl(CommGetAsyncError|CommUserRank)", 1, 4),
    (r"nvrtcGet(CUBIN|PTX|ProgramLog)Size", 1, 8),
]
NO_KERNEL = re.compile(
    r"[Cc]reate|[Dd]estroy|[SG]et[A-Z]|bufferSize|Init|Version|Restore|_preprocess|^nccl(Comm|Group|Mem|Dev|RedOp)|^nvrtc|^cuFile|^nvshmem"
)


def needed(libraries: list[Path]) -> dict[str, set[str]]:
    by_library: dict[str, set[str]] = defaultdict(set)
    for library in libraries:
        lines = subprocess.run(
            ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
        ).stdout
        for line in lines.splitlines():
            name, _, version = line.split()[-1].partition("@")
            version = version.lstrip("@")
            soname = (
                version
                if OURS.match(version)
                else next((lib for prefix, lib in BY_PREFIX.items() if name.startswith(prefix)), None)
            )
            if soname is None and not version and re.match(r"cu[A-Z]", name):
                soname = "libcuda.so.1"
            if soname:
                by_library[soname].add(name)
    return by_library


def stub(soname: str, name: str) -> str:
    body = []
    for pattern, index, size in ANSWERS:
        if re.fullmatch(pattern + r"(_v2)?", name):
            body.append(f"if (a[{index}]) memset(a[{index}], 0, {size});")
    if soname in REFUSING:
        code = f'fprintf(stderr, "fakecuda: {name} is not there\\n"); return {REFUSING[soname]};'
        return f"long {name}(void) {{ {code} }}"
    if body:
        parameters = ", ".join(f"void* a{i}" for i in range(20))
        values = ", ".join(f"a{i}" for i in range(20))
        return f"long {name}({parameters}) {{ void* a[] = {{{values}}}; {' '.join(body)} return 0; }}"
    if re.search(r"[Cc]reate(?!IdentityPermutation|PreMulSum)", name) and soname != "libcufft.so.12":
        return f"long {name}(void** out) {{ *out = calloc(1, 512); return 0; }}"
    if "ErrorString" in name:
        return f'const char* {name}(void) {{ return "an error of a stand-in library"; }}'
    if re.search(r"SetStream", name):
        return f"long {name}(void** handle, void* stream) {{ *handle = stream; return 0; }}"
    if not NO_KERNEL.search(name):
        return f'long {name}(void** handle) {{ fcu_library_kernel("{name}", *handle); return 0; }}'
    return f"long {name}(void) {{ return 0; }}"


def write_stubs(torch_lib: Path, source: Path, out: Path) -> None:
    text = "\n".join(path.read_text() for path in sorted(source.glob("*.cpp")))
    written = set(re.findall(r"^[\w\* ]+?\**\s*\**(\w+)\([^;]*?\)\s*\{", text, re.MULTILINE))
    libraries = needed(sorted(torch_lib.glob("*.so")))
    for soname, names in LOOKED_UP.items():
        libraries[soname] |= set(names)
    for soname in EMPTY:
        libraries[soname] |= set()
    out.mkdir(exist_ok=True)
    for soname, names in sorted(libraries.items()):
        rest = sorted(names - written)
        lines = [
            "#include <stdio.h>",
            "#include <stdlib.h>",
            "#include <string.h>",
            "void fcu_library_kernel(const char*, void*);",
        ]
        (out / f"{soname}.c").write_text("\n".join(lines + [stub(soname, name) for name in rest]) + "\n")
        version = "NVSHMEM" if "nvshmem" in soname else soname
        keep = "global: cu*; __cuda*; fcu_*; nccl*; nvrtc*; nvshmem*; _ZN8fcu_call*;"
        (out / f"{soname}.map").write_text(f"{version} {{ {keep} local: *; }};\n")
    (out / "libraries").write_text(" ".join(sorted(libraries)))


def write_ids(include: Path, out: Path) -> None:
    newest: dict[tuple[int, str], tuple[int, int, str]] = {}
    for driver, file in enumerate(("cupti_runtime_cbid.h", "cupti_driver_cbid.h")):
        pattern = r"CUPTI_(?:RUNTIME|DRIVER)_TRACE_CBID_(_*cu\w+?)(?:_v(\d{4,5}))?\s*=\s*(\d+)"
        for name, version, number in re.findall(pattern, (include / file).read_text()):
            full = f"{name}_v{version}" if version else name
            if (driver, name) not in newest or newest[driver, name][0] < int(version or 0):
                newest[driver, name] = (int(version or 0), int(number), full)
    lines = [f"#define FCU_CBID_{name} {number}" for (_, name), (_, number, _) in newest.items()]
    lines += [
        "static const struct { int driver; unsigned cbid; const char* name; }",
        "    fcu_callback_names[] __attribute__((unused)) = {",
    ]
    lines += [f'    {{{driver}, {number}, "{full}"}},' for (driver, _), (_, number, full) in newest.items()]
    out.write_text("#pragma once\n" + "\n".join(lines) + "\n};\n")


if __name__ == "__main__":
    what, *paths = sys.argv[1:]
    {"ids": write_ids, "stubs": write_stubs}[what](*map(Path, paths))
