"""The same functions by hand: the `qwarm` command, one file a subcommand."""
