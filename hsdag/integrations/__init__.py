"""hsdag inside other packages, each an optional extra."""
