"""Preparations of studies, such as compiling operators: each runs once, before the first variant that needs it."""


rule prepare:
    """Supervised like a training. If it fails, the variants that need it may fail, and all other jobs go on."""
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
        exec "$STEPTRACE_PYTHON" -m steptrace.jobs.supervise --out results/prepared/{wildcards.preparation} --planned \
            --log prepare.log -- {params.command}
        """
