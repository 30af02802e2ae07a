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
            runs=RULES.runs_of_variant(""),
        shell:
            """
            "$STEPTRACE_PYTHON" "$STEPTRACE_SCRIPTS/analyze_runs.py" {params.runs} 2>&1 | tee {log}
            """


rule analyze_trace:
    """A trace recorded elsewhere, or a folder with one file per rank."""
    input:
        lambda wildcards: PLAN.settings.traces[wildcards.trace],
    output:
        "results/traces/{trace}/summary.json",
        "results/traces/{trace}/report.html",
    log:
        "results/traces/{trace}/analyze.log",
    params:
        code=PLAN.code("steptrace.cli", "steptrace.commands.analyze"),
    shell:
        """
        "$STEPTRACE_PYTHON" -m steptrace.cli analyze {input:q} --out results/traces/{wildcards.trace} 2>&1 | tee {log}
        """
