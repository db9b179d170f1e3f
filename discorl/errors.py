"""The one exception class that carries a message for the user."""


class DiscorlError(ValueError):
    """Bad input: the message says what is wrong and what to do about it.

    The command line prints the message alone; from Python it is an ordinary ``ValueError``.
    """


class EnvFailure(DiscorlError):  # noqa: N818
    """An environment broke in the middle of a run: what was learnt so far is worth keeping."""
