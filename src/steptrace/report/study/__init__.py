"""The page of a study: one function and template a section; `report.notebook` orders them."""

from steptrace.report.page.findings import findings
from steptrace.report.study.communication import communication
from steptrace.report.study.estimate import estimate
from steptrace.report.study.first_screen import all_findings, first_screen
from steptrace.report.study.input_pipeline import input_pipeline
from steptrace.report.study.memory import memory
from steptrace.report.study.model import load_study
from steptrace.report.study.overview import launches, loss_sections, overview
from steptrace.report.study.provenance import method, provenance
from steptrace.report.study.step_times import step_times
from steptrace.report.study.syncs import sync_changes, sync_sites, syncs
from steptrace.report.study.trace_view import trace_view
from steptrace.report.study.variants import needs_a_look, variants
from steptrace.report.study.waterfall import waterfall
