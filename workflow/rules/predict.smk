"""The syncs that a variant would make on a GPU, whatever machine this is. Neither timed nor needed by any training."""


rule predict:
    """Supervised: a step that cannot be followed leaves its variant without a prediction, and stops nothing.

    A failure is not tried again before something changes: the same program would fail in the same way.
    """
    input:
        config="results/{study}/{variant}/config.gpu.yaml",
        extension=extension,
    output:
        "results/{study}/{variant}/prediction/status.json",
    log:
        "results/{study}/{variant}/prediction/predict.log",
    threads: 1
    resources:
        quiet=QUIET,
    params:
        config=prediction_digest("config"),
        code=prediction_digest("code"),
        versions=prediction_digest("versions"),
    shell:
        """
        export OMP_NUM_THREADS={threads} # several at once must not want all cores each
        exec "$STEPTRACE_PYTHON" -m steptrace.train.supervise \
            --out results/{wildcards.study}/{wildcards.variant}/prediction --attempt 1 --timeout "$STEPTRACE_TIMEOUT_S" \
            --log predict.log --expect ../prediction.json \
            --label '{wildcards.study}/{wildcards.variant} prediction' \
            -- "$STEPTRACE_PYTHON" -m steptrace.predict.main --config {input.config} --small \
            --out results/{wildcards.study}/{wildcards.variant}
        """
