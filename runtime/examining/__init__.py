"""What is true on a machine: its devices, the way between them, and what HETERO and half precision do to a model."""
