"""Reports of searches: one HTML page that needs no network, its figures by Bokeh, and files for Model Explorer."""
