"""Models as computation graphs: reading, shapes, co-location, coarsening."""
