"""The machine: its devices, processors, memory and energy counters."""
