# `snakemake --cores all` runs everything that config/workflow.yaml asks for. The rules are in workflow/rules/.
from snakemake.utils import min_version

min_version("9.20")  # a module's onstart can be called by the Snakefile that uses it


include: "workflow/rules/common.smk"  # the plan: studies, variants, digests; the lock
include: "workflow/rules/prepare.smk"  # preparations of studies, such as compiling operators
include: "workflow/rules/train.smk"  # every repeat of every variant, and the checks of each variant
include: "workflow/rules/analyze.smk"  # traces to summaries and tables
include: "workflow/rules/report.smk"  # comparison, pages, verdict


localrules:
    all,
    analyze_trace,
    compare,
    report,
    index,
    verdict,
    enforce,


rule all:
    default_target: True
    input:
        RULES.prepared(),
        RULES.runs("status.json"),
        RULES.runs("summary.json"),
        # Listed although comparisons need them: Snakemake does not remake a missing intermediate file by itself.
        expand(
            "results/{study}/{check}.json",
            study=STUDIES,
            check=["equivalence", "prediction"],
        ),
        expand("results/{study}/comparison.json", study=STUDIES),
        expand("reports/{study}.html", study=STUDIES),
        "reports/index.html",
        expand("results/traces/{trace}/summary.json", trace=TRACES),
        "results/verdict.json",
        "results/.cache/passed",
