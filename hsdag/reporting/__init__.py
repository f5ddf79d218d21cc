"""hsdag report: a run folder as a page."""
