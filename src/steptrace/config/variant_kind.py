"""The two kinds of variants: a training by our own program (`steptrace.lab`), and any other program.

Both are started, measured and ended in the same way. This table holds the few differences. The largest is in checks.
A check of our own training is a function of its configuration, which calls the training's own model, loss and step. It
measures nothing, so it needs no probe: equivalence compares single batches with a float64 model, and a prediction
follows two steps. As forks of one process such checks take 0.1 s of processor time each, where the start of a program
under the probe takes 3.5 s, and of several ranks one is followed instead of starting all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from steptrace.documents.run import Check

#: The modules that measure a program: inside it, and beside it for its results.
_MEASURE: Final = ("steptrace.launch.modes", "steptrace.jobs.variant")


@dataclass(frozen=True)
class VariantKind:
    """One kind of variants.

    Attributes:
        check_commands: for each check, the words after `python -m` that run it on one variant.
        code: for `training` and each check, the modules whose code the result depends on.
        is_ours: whether the program is ours. Then a check is a function that a fork can call, and the configuration
            says the batch size. A check of any other program starts the program.
    """

    check_commands: Mapping[Check, tuple[str, ...]]
    code: Mapping[str, tuple[str, ...]]
    is_ours: bool


TRAINING: Final = VariantKind(
    check_commands={"equivalence": ("steptrace.equivalence.main",), "prediction": ("steptrace.predict.main",)},
    code={
        "training": ("steptrace.lab.main", *_MEASURE),
        "equivalence": ("steptrace.equivalence.main",),
        "prediction": ("steptrace.predict.main",),
    },
    is_ours=True,
)
COMMAND: Final = VariantKind(
    check_commands={
        "equivalence": ("steptrace.jobs.command_checks", "equivalence"),
        "prediction": ("steptrace.jobs.command_checks", "predict"),
    },
    code={
        "training": _MEASURE,
        "equivalence": ("steptrace.jobs.command_checks", "steptrace.launch.modes"),
        "prediction": ("steptrace.jobs.command_checks", "steptrace.launch.predict"),
    },
    is_ours=False,
)


def kind_of(document: Mapping[str, Any]) -> VariantKind:
    """The kind of the variant that a resolved configuration belongs to."""
    return COMMAND if "program" in document else TRAINING
