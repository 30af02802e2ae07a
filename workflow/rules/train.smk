"""The expensive part: trainings, one process each, supervised so that a failure is a result and stops nothing."""

# Study by study, as `studies:` names them, so that the first page is there long before the last. Within a study round k
# of all variants comes before round k+1, so that a machine that slows down slows all variants alike, and after the first
# round come the equivalence checks and the predictions: one of everything before the second of anything. Priorities
# belong to rules, hence one rule per study and round; that nothing overtakes is snakemake_scheduler_plugin_steptrace.
for study in STUDIES:

    for round in range(PLAN.repeats):

        rule:
            name:
                f"train_{study}_round{round}"
            input:
                config="results/{study}/{variant}/config.yaml",
                extension=RULES.extension,
            output:
                "results/{study}/{variant}/run{repeat}/status.json",
            log:
                "results/{study}/{variant}/run{repeat}/train.log",
            wildcard_constraints:
                study=study,
                repeat=str(round),
            priority: RULES.priority(study, RULES.stage_of_round(round))
            threads: RULES.threads_of_training
            resources:
                gpu=RULES.gpus_of_training,
                quiet=RULES.quiet_of_training,
            params:
                run=RULES.training,
                versions=of_variant(PLAN.train_digests, "versions"),
                trains=RULES.trains,
            shell:
                """
                exec "$STEPTRACE_PYTHON" -m steptrace.train.supervise --parent "$STEPTRACE_PARENT" \
                    --server run{wildcards.repeat} \
                    --out results/{wildcards.study}/{wildcards.variant}/run{wildcards.repeat} \
                    {params.run} --timeout "$STEPTRACE_TIMEOUT_S" --expect run.json \
                    --failures results/{wildcards.study}/{wildcards.variant}/failures/run{wildcards.repeat}.jsonl \
                    --label '{wildcards.study}/{wildcards.variant} run{wildcards.repeat}' \
                    -- "$STEPTRACE_PYTHON" {params.trains} --config {input.config} \
                    --out results/{wildcards.study}/{wildcards.variant}/run{wildcards.repeat} --repeat {wildcards.repeat}
                """

    # A variant's loss and gradient against the study's float64 reference. Not timed, so several may run at once.
    rule:
        name:
            f"equivalence_{study}"
        input:
            config="results/{study}/{variant}/config.yaml",
            reference=RULES.reference,
            extension=RULES.extension,
        output:
            "results/{study}/{variant}/equivalence/status.json",
        log:
            "results/{study}/{variant}/equivalence/train.log",
        wildcard_constraints:
            study=study,
        priority: RULES.priority(study, CHECKS)
        threads: RULES.threads_of_check
        resources:
            gpu=RULES.gpus_of_equivalence,
            quiet=QUIET,
        params:
            run=RULES.equivalence,
            versions=of_variant(PLAN.equivalence_digests, "versions"),
            compares=RULES.compares,
        shell:
            """
            exec "$STEPTRACE_PYTHON" -m steptrace.train.supervise --parent "$STEPTRACE_PARENT" --server checks \
                --out results/{wildcards.study}/{wildcards.variant}/equivalence \
                {params.run} --timeout "$STEPTRACE_TIMEOUT_S" --expect equivalence.json \
                --failures results/{wildcards.study}/{wildcards.variant}/failures/equivalence.jsonl \
                --label '{wildcards.study}/{wildcards.variant} equivalence' \
                -- "$STEPTRACE_PYTHON" {params.compares} --config {input.config} \
                --reference {input.reference} --out results/{wildcards.study}/{wildcards.variant}/equivalence
            """
