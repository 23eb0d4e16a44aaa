"""The one exception a person meets."""


class GrpoError(Exception):
    """A mistake the user can mend, told in one line: the field or file (and line), what is wrong, what to do.

    The command line prints it without a traceback and exits with 2; `--debug` shows the traceback.
    """


class DiskFullError(GrpoError):
    """There is no space left. What was written before is intact, and the same write can be tried again."""
