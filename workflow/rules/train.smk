"""The expensive part: trainings, each a process of its own; a failure is a result and stops nothing."""

# Priorities belong to rules, hence one for each study and round. Within a study round k of all variants comes before
# round k+1, so that a machine that slows down slows all alike. What takes all cores is overtaken by nothing.
for study in STUDIES:

    for repeat in range(PLAN.settings.repeats):

        rule:
            name:
                f"train_{study}_run{repeat}"
            input:
                RULES.prepared,
            output:
                "results/{study}/{variant}/run{repeat}/status.json",
            log:
                "results/{study}/{variant}/run{repeat}/train.log",
            wildcard_constraints:
                study=study,
                repeat=str(repeat),
            priority: RULES.priority(study, repeat)
            threads: RULES.threads
            resources:
                gpu=RULES.gpus,
            params:
                depends=RULES.training,
                attempt=RULES.attempt("results/{study}/{variant}/run{repeat}"),
                takes=RULES.takes,
                trains=RULES.trains,
            shell:
                """
                run=results/{wildcards.study}/{wildcards.variant}/run{wildcards.repeat}
                exec "$STEPTRACE_PYTHON" -m steptrace.train.supervise --out $run --planned {params.takes} \
                    --timeout $STEPTRACE_TIMEOUT_S -- "$STEPTRACE_PYTHON" {params.trains} \
                    results/{wildcards.study}/{wildcards.variant}/config.yaml --out $run --repeat {wildcards.repeat}
                """

    # Loss and gradient of every variant against float64, and the syncs that each would make on a GPU: a child each.
    for what in VARIANT_CHECKS:

        rule:
            name:
                f"{what}_{study}"
            input:
                RULES.prepared,
            output:
                f"results/{{study}}/{what}.json",
            log:
                f"results/{{study}}/{what}.log",
            wildcard_constraints:
                study=study,
            priority: RULES.priority(study, CHECKS)
            threads: ALL_CORES
            resources:
                gpu=RULES.gpus if what == "equivalence" else 0,
            params:
                what=what,
                depends=RULES.keys(what),
                attempt=RULES.attempt(f"results/{{study}}/{what}"),
            shell:
                """
                exec "$STEPTRACE_PYTHON" -m steptrace.workflow.checks {params.what} results/{wildcards.study} \
                    --gpus {resources.gpu} --at-once {threads} --timeout $STEPTRACE_TIMEOUT_S >{log} 2>&1
                """
