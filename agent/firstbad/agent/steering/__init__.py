"""Where the update is decided: the steps of optimizers, with their closures, and the steps of loss scalers."""
