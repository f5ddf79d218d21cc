"""hsdag bench and hsdag profile."""
