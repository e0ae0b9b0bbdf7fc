"""One module per command: HELP, DESCRIPTION, configure(parser), run(options, session) -> exit code."""
