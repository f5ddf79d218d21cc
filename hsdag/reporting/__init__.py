"""Explain searches, and report them as one HTML page that needs no network, with figures drawn by Bokeh."""
