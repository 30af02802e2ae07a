"""Comparisons, pages, and the verdict that decides the exit code."""

import json


rule compare:
    input:
        statuses=lambda wildcards: RULES.runs("status.json", wildcards.study),
        summaries=lambda wildcards: RULES.runs("summary.json", wildcards.study),
        equivalence="results/{study}/equivalence.json",
        prediction="results/{study}/prediction.json",
        baselines=RULES.baseline_files,
    output:
        "results/{study}/comparison.json",
    log:
        "results/{study}/compare.log",
    priority: ENDING
    params:
        code=PLAN.code(script="compare"),
        study=RULES.study,
        gates=RULES.gates,
        gpus=RULES.estimate_gpus,
        own_gpus=RULES.own_gpus,
        attempt=RULES.attempt("results/{study}/comparison"),
    shell:
        """
        exec "$STEPTRACE_PYTHON" -m steptrace.workflow.job results/{wildcards.study}/comparison --log {log} -- \
            "$STEPTRACE_SCRIPTS/compare.py" results/{wildcards.study} --gates {params.gates:q} {params.gpus} --out {output}
        """


rule report:
    input:
        comparison="results/{study}/comparison.json",
        summaries=lambda wildcards: RULES.runs("summary.json", wildcards.study),
    output:
        page="reports/{study}.html",
        notebook="reports/{study}.ipynb",  # already executed; it can be run again in Jupyter, on results/
    log:
        "results/{study}/report.log",
    priority: ENDING
    params:
        code=RULES.report_code,
        attempt=RULES.attempt("reports/{study}"),
    shell:
        """
        exec "$STEPTRACE_PYTHON" -m steptrace.workflow.job reports/{wildcards.study} --log {log} -- \
            "$STEPTRACE_SCRIPTS/report.py" study results/{wildcards.study} --out {output.page}
        """


rule index:
    input:
        comparisons=expand("results/{study}/comparison.json", study=STUDIES),
        traces=expand("results/traces/{trace}/summary.json", trace=TRACES),
        pages=expand("reports/{study}.html", study=STUDIES),  # the index links pages and notebooks
    output:
        "reports/index.html",
    log:
        "results/index.log",
    params:
        code=RULES.report_code,
        others=RULES.other_studies(),
        attempt=RULES.attempt("reports/index"),
    shell:
        """
        exec "$STEPTRACE_PYTHON" -m steptrace.workflow.job reports/index --log {log} -- \
            "$STEPTRACE_SCRIPTS/report.py" index {input.comparisons} {params.others} --traces {input.traces} --out {output}
        """


rule verdict:
    input:
        comparisons=expand("results/{study}/comparison.json", study=STUDIES),
        reports=expand("reports/{study}.html", study=STUDIES),
        index="reports/index.html",
        traces=expand("results/traces/{trace}/summary.json", trace=TRACES),
        baselines=RULES.baseline_files,
    output:
        "results/verdict.json",
    log:
        "results/verdict.log",
    params:
        code=PLAN.code(script="verdict"),
        gates=lambda wildcards: json.dumps(PLAN.settings.gates),  # a function, since in a text braces are wildcards
        attempt=RULES.attempt("results/verdict"),
    shell:
        """
        exec "$STEPTRACE_PYTHON" -m steptrace.workflow.job results/verdict --log {log} -- \
            "$STEPTRACE_SCRIPTS/verdict.py" write {input.comparisons} --gates {params.gates:q} --out {output}
        """


rule enforce:
    """Decides the exit code, after everything else. It fails without an output, so the next call reports it again."""
    input:
        "results/verdict.json",
    output:
        touch("results/.cache/passed"),
    log:
        "results/enforce.log",
    shell:
        """
        "$STEPTRACE_PYTHON" "$STEPTRACE_SCRIPTS/verdict.py" enforce {input} 2>&1 | tee {log}
        """
