"""Trainings, each in a process of its own. A failed training is a result too, and stops no other job."""

# Snakemake's priorities belong to rules, so there is one rule for each study and round. Within a study, round k of all
# variants comes before round k+1, so that a machine that slows down affects all variants alike.
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
            shell:
                """
                run=results/{wildcards.study}/{wildcards.variant}/run{wildcards.repeat}
                exec "$STEPTRACE_PYTHON" -m steptrace.jobs.supervise --out $run --planned {params.takes} \
                    --timeout $STEPTRACE_TIMEOUT_S --variant results/{wildcards.study}/{wildcards.variant}/config.yaml \
                    --repeat {wildcards.repeat}
                """

    # Two jobs: one compares the loss and gradient of each variant with float64, one predicts its syncs on a GPU.
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
                gpu=RULES.predicted_gpu if what == "prediction" else "",
                depends=RULES.keys(what),
                attempt=RULES.attempt(f"results/{{study}}/{what}"),
            shell:
                """
                exec "$STEPTRACE_PYTHON" -m steptrace.workflow.checks {params.what} results/{wildcards.study} \
                    --gpus {resources.gpu} --at-once {threads} --timeout $STEPTRACE_TIMEOUT_S {params.gpu} >{log} 2>&1
                """
