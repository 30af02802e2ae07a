"""The syncs that a variant would make on a GPU, whatever machine this is. Neither timed nor needed by any training."""

# Supervised: a step that cannot be followed leaves its variant without a prediction, and stops nothing. A failure is not
# tried again before something changes: the same program would fail in the same way.
for study in STUDIES:

    rule:
        name:
            f"predict_{study}"
        input:
            config="results/{study}/{variant}/config.gpu.yaml",
            extension=RULES.extension,
        output:
            "results/{study}/{variant}/prediction/status.json",
        log:
            "results/{study}/{variant}/prediction/predict.log",
        wildcard_constraints:
            study=study,
        priority: RULES.priority(study, CHECKS)
        threads: RULES.threads_of_check
        resources:
            quiet=QUIET,
        params:
            digests=of_variant(PLAN.prediction_digests, "config", "code", "versions"),
            predicts=RULES.predicts,
        shell:
            """
            export OMP_NUM_THREADS={threads} # several at once must not want all cores each
            exec "$STEPTRACE_PYTHON" -m steptrace.train.supervise --parent "$STEPTRACE_PARENT" --server checks \
                --out results/{wildcards.study}/{wildcards.variant}/prediction --attempt 1 --timeout "$STEPTRACE_TIMEOUT_S" \
                --log predict.log --expect ../prediction.json \
                --label '{wildcards.study}/{wildcards.variant} prediction' \
                -- "$STEPTRACE_PYTHON" {params.predicts} --config {input.config} \
                --out results/{wildcards.study}/{wildcards.variant}
            """
