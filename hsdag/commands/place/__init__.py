"""The command ``hsdag place``, from a model to the placement to deploy."""
