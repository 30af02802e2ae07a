"""The compiled operators of ext/giou: built once, before the first variant that calls them."""

import hashlib

from steptrace.config.digest import versions

EXTENSION = ROOT / "ext" / "giou"
#: A loss from here is made of the extension's operators.
OPERATORS = "steptrace.workloads.giou_kernels."

# Where the build finds its Python side, and a training the library.
os.environ["STEPTRACE_EXTENSION"] = str(EXTENSION)
os.environ.setdefault(
    "STEPTRACE_GIOU_LIBRARY", str(Path("results/extension").resolve())
)


def extension(wildcards):
    """What a variant has to wait for: the extension's status if its loss comes from there, whatever that status is."""
    loss = PLAN.variant(wildcards.study, wildcards.variant).config["loss"]
    return (
        "results/extension/status.json"
        if loss["_target_"].startswith(OPERATORS)
        else []
    )


def extension_digests():
    """Every byte of the sources, and torch's version. The loader asks for a library of these very bytes."""
    total = hashlib.sha256()
    for path in sorted(
        [*EXTENSION.glob("csrc/*"), *EXTENSION.glob("python/steptrace_giou/*.py")]
    ):
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return {"config": versions(["torch"])["torch"], "code": total.hexdigest()[:16]}


EXTENSION_DIGESTS = extension_digests()


rule extension:
    """Supervised like a training: where nothing can be compiled, the variants that need it fail and all else goes on."""
    output:
        "results/extension/status.json",
    log:
        "results/extension/build.log",
    priority: 2000  # before the first training, or the variants that wait for it would train apart from the others
    threads: CORES
    resources:
        quiet=QUIET,
    params:
        torch=EXTENSION_DIGESTS["config"],
        sources=EXTENSION_DIGESTS["code"],
        attempt=PLAN.attempt("extension", "", "build", EXTENSION_DIGESTS),
    shell:
        """
        export PYTHONPATH="$STEPTRACE_EXTENSION/python${{PYTHONPATH:+:$PYTHONPATH}}"
        "$STEPTRACE_PYTHON" -m steptrace.train.supervise --out results/extension --attempt {params.attempt} \
            --log build.log --expect build.json --failures results/extension/failures/build.jsonl \
            --key {params.torch}-{params.sources} --label extension \
            -- "$STEPTRACE_PYTHON" -m steptrace_giou.build --out results/extension
        grep -q '"status": "ok"' {output} || cat {log} >&2 # the compiler's complaint, whole
        """
