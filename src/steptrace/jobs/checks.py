"""The checks of a study's variants as jobs: the comparison with the reference, and the prediction of syncs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from steptrace.config.resolved import GPU_CONFIG
from steptrace.config.variant_kind import VariantKind
from steptrace.jobs.supervise import Job
from steptrace.run_folder import CHECK_RESULTS

#: The environment variable that names a folder in which checks share the outputs of their baseline.
SHARED_VARIABLE: Final = "STEPTRACE_SHARED"


def equivalence_job(variant: Path, kind: VariantKind, reference: str, *, gpus: int, key: str) -> Job:
    """The job that compares a variant's loss and gradient with the study's reference.

    Args:
        variant: the variant's folder, which holds its resolved configuration.
        kind: the kind of the variant.
        reference: file name of the reference's configuration, in the study's folder.
        gpus: number of GPUs that the check uses.
        key: digest of everything that the result depends on.
    """
    out = variant / "equivalence"
    files = ["--config", str(variant / "config.yaml"), "--reference", str(variant.parent / reference)]
    command = [sys.executable, "-m", *kind.check_commands["equivalence"], *files, "--out", str(out)]
    result = CHECK_RESULTS["equivalence"]
    return Job(out, command, gpus=gpus, key=key, result=result, starts_program=not kind.is_ours)


def prediction_job(variant: Path, kind: VariantKind, *, key: str = "", options: Sequence[str] = ()) -> Job:
    """The job that predicts the syncs of a variant if it were trained on a GPU.

    Args:
        variant: the variant's folder, which holds its configuration for scale=gpu.
        kind: the kind of the variant.
        key: digest of everything that the result depends on.
        options: further options of the kind's command, such as `--gpu H100`.
    """
    files = ["--config", str(variant / GPU_CONFIG), "--out", str(variant)]
    command = [sys.executable, "-m", *kind.check_commands["prediction"], *files, *options]
    result = CHECK_RESULTS["prediction"]
    folder = variant / "prediction"
    return Job(folder, command, log="predict.log", key=key, result=result, starts_program=not kind.is_ours)
