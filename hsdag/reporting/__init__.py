"""Reports of searches: one HTML page that needs no network, its figures by Bokeh."""
