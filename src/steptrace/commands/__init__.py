"""The command line's commands: each module adds one to the parser."""
