"""Where problems come from: workloads, models of the zoo, families."""
