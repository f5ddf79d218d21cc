"""The submodels that HETERO makes of a placed model."""
