"""Traces to tables."""

# All runs of a variant in one process, after the study's last training and its checks.
for study in STUDIES:

    rule:
        name:
            f"analyze_{study}"
        input:
            RULES.runs_of_variant("status.json"),
        output:
            summaries=RULES.runs_of_variant("summary.json"),
            tables=directory(RULES.runs_of_variant("tables")),
        log:
            "results/{study}/{variant}/analyze.log",
        wildcard_constraints:
            study=study,
        priority: RULES.priority(study, CHECKS + 1)
        localrule: True
        params:
            code=PLAN.code(script="analyze_runs"),
            attempt=RULES.attempt("results/{study}/{variant}/analysis"),
            runs=RULES.runs_of_variant(""),
        shell:
            """
            exec "$STEPTRACE_PYTHON" -m steptrace.workflow.job results/{wildcards.study}/{wildcards.variant}/analysis \
                --log {log} -- "$STEPTRACE_SCRIPTS/analyze_runs.py" {params.runs}
            """


rule analyze_trace:
    """A trace recorded elsewhere, or a folder with one file per rank."""
    input:
        lambda wildcards: PLAN.settings.traces[wildcards.trace],
    output:
        "results/traces/{trace}/summary.json",
        "results/traces/{trace}/report.html",
        directory("results/traces/{trace}/tables"),
    log:
        "results/traces/{trace}/analyze.log",
    params:
        code=RULES.trace_code,
        attempt=RULES.attempt("results/traces/{trace}"),
    shell:
        # Snakemake has removed the outputs, so that nothing is left of what the list of an earlier call names.
        """
        rm -f results/traces/{wildcards.trace}/.steptrace.json
        exec "$STEPTRACE_PYTHON" -m steptrace.workflow.job results/traces/{wildcards.trace} --log {log} -- \
            steptrace.cli analyze --out results/traces/{wildcards.trace} -- {input:q}
        """
