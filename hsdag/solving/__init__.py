"""hsdag solve and hsdag simulate: problem files."""
