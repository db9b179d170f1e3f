"""The one exception class that carries a message for the user."""


class DiscorlError(ValueError):
    """Bad input: the message says what is wrong and what to do about it.

    The command line prints the message alone; from Python it is an ordinary ``ValueError``.
    """


class EnvFailure(DiscorlError):  # noqa: N818
    """An environment broke in the middle of a run: what was learnt so far is worth keeping."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, NumPy or torch could not get the memory that they asked for."""
    if isinstance(error, MemoryError):
        return True
    # torch has a class of its own only for GPUs.
    said = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "allocate memory" in said or "out of memory" in said or "overflowed with sizes" in said
    )
