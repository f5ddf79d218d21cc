"""Searches explained, and reported as one HTML page that needs no network; its figures by Bokeh."""
