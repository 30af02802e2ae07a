"""A study's variants side by side: from the runs' files to `comparison.json`.

load.py reads a study's folder, timing.py compares step times, explain.py sums up what traces, equivalence checks and
predictions say, waterfall.py divides a difference in step time among the step's parts, sync_diff.py says which
synchronisations came and went, whatif.py predicts a variant from its baseline's traces, and study.py puts the
comparison together.

What a variant's entry in comparison.json says beyond its own figures:

- `waterfall`: a list of `category`, `delta_ns`, `delta_ms`, `low`, `high` (ms, between runs), `baseline_ns`,
  `variant_ns`; all `delta_ns` add up to that of `step_difference` (same keys, no category). Categories: see
  `steptrace.analysis.overview.parts`, and last `residual`.
- `sync_diff`: null, or `basis` (`measured`, `predicted`) and `sites`; see sync_diff.py.
- `whatif`: null, or `removed_per_step`, `added_per_step`, `predicted_ms`, `measured_ms`, `error` (predicted over
  measured less 1), `replay_error`, `runs`, `reason` (why nothing is predicted).
- `sync_prices`: null, or what were gained without any of the variant's syncs: `all_saved_ns_per_step`,
  `all_ceiling_ns_per_step`, `replay_error`, `unexplained_ns_per_step`, `reason`. Each of `sync_sites` has
  `saved_ns_per_step` and `ceiling_ns_per_step`, null where no trace can say.
"""

from steptrace.compare.study import COMPARISON_FILE, compare

__all__ = ["COMPARISON_FILE", "compare"]
