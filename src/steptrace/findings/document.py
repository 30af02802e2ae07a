"""docs/findings.md, written from the rules themselves: `python -m steptrace.findings.document > docs/findings.md`."""

import sys
from typing import Any, Final

from steptrace.findings import RANK_RULES, RULES, TRACE_RULES, Rule

_HEAD: Final = """# Findings

Each rule is data: a condition with its thresholds and their source, a claim with evidence, an advice, the check that
could refute it, and the study that demonstrates it. This page is made from the rules
(`python -m steptrace.findings.document > docs/findings.md`), and a test holds it against them.

Findings are ranked by the time per step that a perfect remedy could save; those of a trace by severity before that.
It is a ceiling, not a forecast: costs do not add up, since one instant can have several causes, and the next cause may
come to light behind the first. On a trace it is at most what its steps would be shorter by without all work of
the class (compute, communication, memory, data loader, syncs); where that is less than 1 % of the step, the finding
says so and is an info. A trace that marks no steps is looked at as a whole; its findings have a share,
and no time per step. A figure that was not measured fires no rule.

There is no cost, and the finding is an info, where a profiled step takes twice as long as an unprofiled one or more:
those times are mostly the profiler's. On a simulated GPU (tests/standin) nothing has a cost, and what rests on times
alone is not said.

Three kinds do not wait for their turn by cost. A study's answer, `which_variant`, leads. What went wrong comes next:
failed runs and checks, and variants that compute something else. Syncs that are only predicted have no cost, for want
of a GPU; they come right after the findings of high severity with one.

One cause is one finding. A rule on a symptom is left out where findings on its causes account for half of its cost or
more. A study has what most of a variant's traces agree on, with the median of their costs; where a rule on studies has
the same name, that one stands, since it knows unprofiled times and all runs.

Figures are those of summary.json and comparison.json ([metrics](metrics.md)); findings stand there under `findings`.
"ours" marks a threshold that no other tool gives.

"""

_COLUMNS: Final = ("Rule", "Looks at", "Fires when", "Source of the thresholds", "Advice", "Counter-check", "Study")


def rules_page() -> str:
    """The page as Markdown: a table of all rules, those on the same cause in one row."""
    rows = [_row(name, where) for name, where in _by_name().items()]
    lines = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS)), *map(_line, rows)]
    return _HEAD + "\n".join(lines) + "\n"


def _by_name() -> dict[str, dict[str, Rule[Any]]]:
    """For each rule's name what it looks at: `trace`, `ranks`, `study`."""
    found: dict[str, dict[str, Rule[Any]]] = {}
    for what, rules in (("trace", TRACE_RULES), ("ranks", RANK_RULES), ("study", RULES)):
        for rule in rules:
            found.setdefault(rule.name, {})[what] = rule
    return found


def _row(name: str, where: dict[str, Rule[Any]]) -> list[str]:
    rule = next(iter(where.values()))
    condition = rule.condition
    if rule.explained_by:
        condition += "; left out where explained by " + ", ".join(f"`{cause}`" for cause in rule.explained_by)
    study = f"`{rule.study}`" if rule.study else "–"
    return [f"`{name}`", ", ".join(where), condition, rule.basis, rule.advice, rule.counter_check, study]


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(rules_page())
