"""The steps found in all forms of the small training, in one process: prints them as JSON. No program is ended here."""

import json
import sys

from steptrace.engine.steps import Step, StepFinder
from steptrace.launch.hooks import Hooks

hooks = Hooks(StepFinder(lambda step: None))  # noqa: ARG005
hooks.install()

sys.argv = ["forms.py", "", "6"]
import forms  # noqa: E402 - once PyTorch is wrapped

by_form = {}
has_optimizer = hooks.finder.has_optimizer  # it was made when the forms were imported
for form in ("gan", "accumulation", "many_batches", "lbfgs", "groups", "grad", "by_hand", "in_backward"):
    steps: list[Step] = []
    hooks.finder = StepFinder(steps.append)
    hooks.finder.has_optimizer = has_optimizer
    getattr(forms, form)()
    by_form[form] = [[step.backwards, step.skipped, len(step.losses)] for step in steps]
sys.stdout.write(json.dumps(by_form))
