"""``hsdag doctor``: what is true on a machine, and what HETERO and reduced precision would do to a model."""
