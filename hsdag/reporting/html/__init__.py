"""Reports as one HTML file: figures by Bokeh, which is an extra, on a page that needs no network."""

from hsdag.reporting.html.page import check_report, report_html

__all__ = ["check_report", "report_html"]
