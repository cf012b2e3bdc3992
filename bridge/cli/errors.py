"""The error that ends a command with one line."""


class CommandError(Exception):
    """A command cannot do what the user asked for; the message says why and what to do."""
