"""The operator: rolls a model from one version to the next, and back by itself."""
