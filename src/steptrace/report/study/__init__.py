"""The page of a study: one function a section; `report.study_page` orders them."""

from steptrace.report.page.findings import findings
from steptrace.report.study.claims import claims
from steptrace.report.study.estimate import estimate
from steptrace.report.study.first_screen import all_findings, first_screen
from steptrace.report.study.provenance import method, provenance
from steptrace.report.study.step_times import step_times
from steptrace.report.study.subjects import subject_section, subjects
from steptrace.report.study.syncs import syncs
from steptrace.report.study.variants import load_study, needs_a_look, variants
