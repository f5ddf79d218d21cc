"""Report searches as one HTML page that needs no network, with figures drawn by Bokeh."""
