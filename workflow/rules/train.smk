"""The expensive part: trainings, one process each, supervised so that a failure is a result and stops nothing."""

# Round k of all variants comes before round k+1, so that a machine that slows down slows all variants alike. Priorities
# belong to rules, hence one rule per round.
for round in range(PLAN.repeats):

    rule:
        name:
            f"train_round{round}"
        input:
            config="results/{study}/{variant}/config.yaml",
            extension=extension,
        output:
            "results/{study}/{variant}/run{repeat}/status.json",
        log:
            "results/{study}/{variant}/run{repeat}/train.log",
        wildcard_constraints:
            repeat=str(round),
        priority: 1000 - round
        threads: threads_of_training
        resources:
            gpu=gpus_of_training,
            quiet=quiet_of_training,
        params:
            config=train_digest("config"),
            code=train_digest("code"),
            versions=train_digest("versions"),
            attempt=train_attempt,
            device=device,
            ranks=ranks,
            launcher=lambda wildcards: launcher(ranks(wildcards)),
        shell:
            """
            exec "$STEPTRACE_PYTHON" -m steptrace.train.supervise \
                --out results/{wildcards.study}/{wildcards.variant}/run{wildcards.repeat} \
                --attempt {params.attempt} --device {params.device} --devices {params.ranks} \
                --timeout "$STEPTRACE_TIMEOUT_S" --expect run.json \
                --failures results/{wildcards.study}/{wildcards.variant}/failures/run{wildcards.repeat}.jsonl \
                --key {params.config}-{params.code} \
                --label '{wildcards.study}/{wildcards.variant} run{wildcards.repeat}' \
                -- "$STEPTRACE_PYTHON" {params.launcher} -m steptrace.train.main --config {input.config} \
                --out results/{wildcards.study}/{wildcards.variant}/run{wildcards.repeat} --repeat {wildcards.repeat}
            """


rule equivalence:
    """A variant's loss and gradient against the study's float64 reference. Not timed, so several may run at once."""
    input:
        config="results/{study}/{variant}/config.yaml",
        reference=reference,
        extension=extension,
    output:
        "results/{study}/{variant}/equivalence/status.json",
    log:
        "results/{study}/{variant}/equivalence/train.log",
    resources:
        gpu=gpus_of_equivalence,
        quiet=QUIET,
    params:
        config=equivalence_digest("config"),
        code=equivalence_digest("code"),
        versions=equivalence_digest("versions"),
        attempt=equivalence_attempt,
    shell:
        """
        exec "$STEPTRACE_PYTHON" -m steptrace.train.supervise \
            --out results/{wildcards.study}/{wildcards.variant}/equivalence \
            --attempt {params.attempt} --timeout "$STEPTRACE_TIMEOUT_S" --expect equivalence.json \
            --failures results/{wildcards.study}/{wildcards.variant}/failures/equivalence.jsonl \
            --key {params.config}-{params.code} \
            --label '{wildcards.study}/{wildcards.variant} equivalence' \
            -- "$STEPTRACE_PYTHON" -m steptrace.train.equivalence --config {input.config} \
            --reference {input.reference} --out results/{wildcards.study}/{wildcards.variant}/equivalence
        """
