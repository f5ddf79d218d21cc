"""Problems: what is to be placed, on which devices, judged by which objective; problem files and lower bounds."""
