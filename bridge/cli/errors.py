"""The error that ends a command with one line."""


class CommandError(Exception):
    """What the user asked for cannot be done here; the message says why and what to do."""
