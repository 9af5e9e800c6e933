"""Reports: one HTML page on the health, growth, layout and statistics of a table."""

from arrowlog.report.collect import ReportSources, collect_facts
from arrowlog.report.document import TableReport, check_target
from arrowlog.report.facts import ReportFacts

__all__ = ["ReportFacts", "ReportSources", "TableReport", "check_target", "collect_facts"]
