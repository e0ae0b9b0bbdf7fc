"""Where a bad value can be seen. Each observer puts marks into the step window and never raises into the script."""
