"""Problems: ops to be placed, devices, and the objective; problem files and lower bounds."""
