"""Traces to tables. Cheap next to a training, and kept away from one by `quiet`."""


rule analyze_run:
    input:
        "results/{study}/{variant}/run{repeat}/status.json",
    output:
        "results/{study}/{variant}/run{repeat}/summary.json",
    log:
        "results/{study}/{variant}/run{repeat}/analyze.log",
    resources:
        quiet=QUIET,
    params:
        code=PLAN.code(scripts=["analyze_run.py"]),
    shell:
        """
        "$STEPTRACE_PYTHON" "$STEPTRACE_SCRIPTS/analyze_run.py" \
            results/{wildcards.study}/{wildcards.variant}/run{wildcards.repeat} --out {output} 2>&1 | tee {log}
        """


rule analyze_trace:
    """A trace recorded elsewhere."""
    input:
        lambda wildcards: TRACES[wildcards.trace],
    output:
        "results/traces/{trace}/summary.json",
        "results/traces/{trace}/report.html",
    log:
        "results/traces/{trace}/analyze.log",
    resources:
        quiet=QUIET,
    params:
        code=PLAN.code(modules=["steptrace.cli", "steptrace.report.*"]),
    shell:
        """
        "$STEPTRACE_PYTHON" -m steptrace.cli analyze {input:q} --out results/traces/{wildcards.trace} 2>&1 | tee {log}
        """
