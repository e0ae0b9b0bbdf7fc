"""The models of a run: names and places of their parameters, and the wrappers that reduce gradients."""
