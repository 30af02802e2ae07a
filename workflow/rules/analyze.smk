"""Traces to tables. Cheap next to a training, and kept away from one by `quiet`."""

# All runs of a variant in one process, after the study's last training. Where jobs go to a cluster each rank of a run of
# several is a job of its own, and this process merges them.
for study in STUDIES:

    rule:
        name:
            f"analyze_rank_{study}"
        input:
            "results/{study}/{variant}/run{repeat}/status.json",
        output:
            directory("results/{study}/{variant}/run{repeat}/ranks/{rank}"),
        log:
            "results/{study}/{variant}/analyze_run{repeat}_rank{rank}.log",
        wildcard_constraints:
            study=study,
            rank=r"\d+",
        priority: RULES.priority(study, RULES.stage_of_analyses)
        resources:
            quiet=QUIET,
        params:
            code=PLAN.code(scripts=["analyze_rank.py"]),
            run=lambda wildcards, input: Path(input[0]).parent,
        shell:
            """
            "$STEPTRACE_PYTHON" "$STEPTRACE_SCRIPTS/analyze_rank.py" {params.run} --rank {wildcards.rank} \
                --out {output} 2>&1 | tee {log}
            """

    rule:
        name:
            f"analyze_{study}"
        input:
            runs=RULES.runs_of_variant("status.json"),
            ranks=RULES.ranks_of_variant,
        output:
            summaries=RULES.runs_of_variant("summary.json"),
            tables=directory(RULES.runs_of_variant("tables")),
        log:
            "results/{study}/{variant}/analyze.log",
        wildcard_constraints:
            study=study,
        priority: RULES.priority(study, RULES.stage_of_analyses)
        localrule: True
        resources:
            quiet=QUIET,
        params:
            code=PLAN.code(scripts=["analyze_run.py"]),
            runs=RULES.runs_of_variant(""),
            ranks=lambda wildcards, input: (
                f"--ranks {RULES.ranks(wildcards)}" if input.get("ranks") else ""
            ),
        shell:
            """
            "$STEPTRACE_PYTHON" "$STEPTRACE_SCRIPTS/analyze_run.py" {params.ranks} {params.runs} 2>&1 | tee {log}
            """


rule analyze_trace_rank:
    """One of several ranks that were recorded elsewhere."""
    input:
        lambda wildcards: RULES.recorded(wildcards)[int(wildcards.rank)],
    output:
        directory("results/traces/{trace}/ranks/{rank}"),
    log:
        "results/traces/{trace}/analyze_rank{rank}.log",
    wildcard_constraints:
        rank=r"\d+",
    resources:
        quiet=QUIET,
        mem_mb=RULES.mb_of_analysis,
    params:
        code=PLAN.code(scripts=["analyze_rank.py"]),
    shell:
        """
        "$STEPTRACE_PYTHON" "$STEPTRACE_SCRIPTS/analyze_rank.py" {input:q} --out {output} 2>&1 | tee {log}
        """


rule analyze_trace:
    """A trace recorded elsewhere; of several ranks, each of which was analysed by itself, what compares them."""
    input:
        trace=lambda wildcards: PLAN.settings.traces[wildcards.trace],
        ranks=RULES.ranks_of_trace,
    output:
        "results/traces/{trace}/summary.json",
        "results/traces/{trace}/report.html",
    log:
        "results/traces/{trace}/analyze.log",
    resources:
        quiet=QUIET,
    params:
        code=PLAN.code(scripts=["analyze_rank.py"], modules=["steptrace.cli"]),
    shell:
        """
        if [ -n "{input.ranks}" ]; then
            set -- "$STEPTRACE_SCRIPTS/analyze_rank.py" --merge {input.ranks}
        else
            set -- -m steptrace.cli analyze {input.trace:q}
        fi
        "$STEPTRACE_PYTHON" "$@" --out results/traces/{wildcards.trace} 2>&1 | tee {log}
        """
