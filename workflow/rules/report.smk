"""From tables to pages and to the exit code."""

import json

from pathlib import Path

# The sections of a page are named in one tuple, so the whole package counts.
REPORT_CODE = PLAN.code("steptrace.report.*", script="report")
BASELINES = RULES.baselines


rule compare:
    input:
        statuses=lambda wildcards: RULES.runs("status.json", wildcards.study),
        summaries=lambda wildcards: RULES.runs("summary.json", wildcards.study),
        equivalence="results/{study}/equivalence.json",
        prediction="results/{study}/prediction.json",
        baselines=BASELINES,
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
        own_gpus=[Path("gpus.toml").read_text() if Path("gpus.toml").is_file() else ""],
    shell:
        """
        "$STEPTRACE_PYTHON" "$STEPTRACE_SCRIPTS/compare.py" results/{wildcards.study} --gates {params.gates:q} \
            {params.gpus} --out {output} 2>&1 | tee {log}
        """


rule report:
    input:
        comparison="results/{study}/comparison.json",
        summaries=lambda wildcards: RULES.runs("summary.json", wildcards.study),
    output:
        page="reports/{study}.html",
        notebook="reports/{study}.ipynb",  # executed: opens in Jupyter and runs again on results/
    log:
        "results/{study}/report.log",
    priority: ENDING
    params:
        code=REPORT_CODE,
    shell:
        """
        "$STEPTRACE_PYTHON" "$STEPTRACE_SCRIPTS/report.py" study results/{wildcards.study} --out {output.page} 2>&1 | tee {log}
        """


rule index:
    input:
        comparisons=expand("results/{study}/comparison.json", study=STUDIES),
        traces=expand("results/traces/{trace}/summary.json", trace=TRACES),
    output:
        "reports/index.html",
    log:
        "results/index.log",
    params:
        code=REPORT_CODE,
        others=RULES.other_studies(),
    shell:
        """
        "$STEPTRACE_PYTHON" "$STEPTRACE_SCRIPTS/report.py" index {input.comparisons} {params.others} \
            --traces {input.traces} --out {output} 2>&1 | tee {log}
        """


rule verdict:
    input:
        comparisons=expand("results/{study}/comparison.json", study=STUDIES),
        reports=expand("reports/{study}.html", study=STUDIES),
        index="reports/index.html",
        traces=expand("results/traces/{trace}/summary.json", trace=TRACES),
        baselines=BASELINES,
    output:
        "results/verdict.json",
    log:
        "results/verdict.log",
    params:
        code=PLAN.code(script="verdict"),
        gates=json.dumps(PLAN.settings.gates),
    shell:
        """
        "$STEPTRACE_PYTHON" "$STEPTRACE_SCRIPTS/verdict.py" write {input.comparisons} \
            --gates {params.gates:q} --out {output} 2>&1 | tee {log}
        """


rule enforce:
    """Gives the exit code, last of all. Its output exists only while nothing is wrong, so a failure is said again."""
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
