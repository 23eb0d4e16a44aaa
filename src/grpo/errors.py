"""Errors that users see."""


class GrpoError(Exception):
    """An error that the user can fix, in one line: the field or file (and line), what is wrong, what to do.

    The command line prints it without a traceback and exits with 2; `--debug` shows the traceback.
    """


class DiskFullError(GrpoError):
    """The disk is full. Everything written before is intact, and the same write can be tried again."""
