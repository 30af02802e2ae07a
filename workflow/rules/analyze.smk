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
        RULES.trace_file,
    output:
        "results/traces/{trace}/summary.json",
        "results/traces/{trace}/report.html",
        directory("results/traces/{trace}/tables"),
    log:
        "results/traces/{trace}/analyze.log",
    params:
        code=RULES.trace_code,
        trace=lambda wildcards: PLAN.settings.traces[wildcards.trace],  # a function: it may have braces
        attempt=RULES.attempt("results/traces/{trace}"),
    shell:
        # Snakemake has removed the outputs. The list of an earlier call's files is removed too, as is the excerpt.
        """
        rm -f results/traces/{wildcards.trace}/.steptrace.json results/traces/{wildcards.trace}/step.json.gz
        exec "$STEPTRACE_PYTHON" -m steptrace.workflow.job results/traces/{wildcards.trace} --log {log} -- \
            steptrace.cli analyze --out results/traces/{wildcards.trace} -- {params.trace:q}
        """
