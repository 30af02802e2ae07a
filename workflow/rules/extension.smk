"""The compiled operators of ext/giou: built once, before the first variant that calls them."""

from steptrace.config.plan import key_of_run


rule extension:
    """Supervised like a training: where nothing can be compiled, the variants that need it fail and all else goes on."""
    output:
        "results/extension/status.json",
    log:
        "results/extension/build.log",
    priority: RULES.priority_of_extension  # or the variants that wait for it would train apart from the others
    threads: RULES.machine.cores
    resources:
        quiet=QUIET,
    params:
        torch=EXTENSION_DIGESTS["config"],
        sources=EXTENSION_DIGESTS["code"],
        key=key_of_run(EXTENSION_DIGESTS),
        attempt=PLAN.attempt("extension", "", "build", EXTENSION_DIGESTS),
    shell:
        """
        export PYTHONPATH="$STEPTRACE_EXTENSION/python${{PYTHONPATH:+:$PYTHONPATH}}"
        exec "$STEPTRACE_PYTHON" -m steptrace.train.supervise --parent "$STEPTRACE_PARENT" \
            --out results/extension --attempt {params.attempt} --show-log \
            --log build.log --expect build.json --failures results/extension/failures/build.jsonl \
            --key {params.key} --label extension \
            -- "$STEPTRACE_PYTHON" -m steptrace_giou.build --out results/extension
        """
