"""Export of placements to files that are used without hsdag, one format per file, found by its name."""
