"""What studies prepare, such as compiled operators: once, before the first variant that needs it."""


rule prepare:
    """Supervised like a training: where it fails, the variants that need it may fail and all else goes on."""
    output:
        "results/prepared/{preparation}/status.json",
    log:
        "results/prepared/{preparation}/prepare.log",
    priority: ENDING
    threads: ALL_CORES
    params:
        depends=lambda wildcards: PLAN.preparations[wildcards.preparation].key,
        attempt=RULES.attempt("results/prepared/{preparation}"),
        command=RULES.prepares,
    shell:
        """
        exec "$STEPTRACE_PYTHON" -m steptrace.train.supervise --out results/prepared/{wildcards.preparation} --planned \
            --log prepare.log -- {params.command}
        """
