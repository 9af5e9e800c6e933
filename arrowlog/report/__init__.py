"""Reports: one HTML page on the health, growth, layout and statistics of a table."""

from arrowlog.report.collect import ReportSources, collect_facts
from arrowlog.report.facts import ReportFacts
from arrowlog.report.page import TableReport, check_target

__all__ = ["ReportFacts", "ReportSources", "TableReport", "check_target", "collect_facts"]
