"""``hsdag explain``: what its costs say of a placement's ops, boundaries and limits."""
