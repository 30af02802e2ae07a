"""Traces to tables. Cheap next to a training, and kept away from one by `quiet`."""

# Between two rounds of trainings, several at once: what is cut off has the traces of its whole rounds analysed.
for round in range(PLAN.repeats):

    rule:
        name:
            f"analyze_round{round}"
        input:
            "results/{study}/{variant}/run{repeat}/status.json",
        output:
            summary="results/{study}/{variant}/run{repeat}/summary.json",
            tables=directory("results/{study}/{variant}/run{repeat}/tables"),
        log:
            "results/{study}/{variant}/run{repeat}/analyze.log",
        wildcard_constraints:
            repeat=str(round),
        priority: priority_of_round(round) - 1
        localrule: True
        resources:
            quiet=QUIET,
        params:
            code=PLAN.code(scripts=["analyze_run.py"]),
        shell:
            """
            "$STEPTRACE_PYTHON" "$STEPTRACE_SCRIPTS/analyze_run.py" \
                results/{wildcards.study}/{wildcards.variant}/run{wildcards.repeat} --out {output.summary} 2>&1 | tee {log}
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
