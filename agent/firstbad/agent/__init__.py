"""The agent: lives in every rank of a training run."""
