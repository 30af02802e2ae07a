"""Two traces, or two sets of ranks, against each other: what each step does more, less, slower or faster.

`side` brings a set of traces into one table per topic, counted per step; `compare` finds the same kernel under another
name and judges each row against the steps' spread; `words` says the result in a few lines.
"""

from steptrace.diff.compare import diff
from steptrace.diff.side import Side, read_sides, sides
from steptrace.diff.words import in_words
