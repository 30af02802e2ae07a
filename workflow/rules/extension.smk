"""The compiled operators of ext/giou: built once, before the first variant that calls them."""


rule extension:
    """Supervised like a training: where nothing can be compiled, the variants that need it fail and all else goes on."""
    output:
        "results/extension/status.json",
    log:
        "results/extension/build.log",
    priority: ENDING
    threads: ALL_CORES
    params:
        depends=RULES.extension_key,
        attempt=RULES.attempt("results/extension"),
    shell:
        """
        export PYTHONPATH="$STEPTRACE_EXTENSION/python${{PYTHONPATH:+:$PYTHONPATH}}"
        exec "$STEPTRACE_PYTHON" -m steptrace.train.supervise --out results/extension --planned --log build.log \
            -- "$STEPTRACE_PYTHON" -m steptrace_giou.build --out results/extension
        """
