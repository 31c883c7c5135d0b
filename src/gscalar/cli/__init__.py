"""The command `gscalar`: one `cmd_<verb>.py` a command; each parses, calls one function and formats."""
