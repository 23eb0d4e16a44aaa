"""Errors that users see."""

import traceback

MOST_CHARACTERS = 2000
"""Of a message."""


def one_line(text: str, most: int = 1000) -> str:
    """Text for a message: control characters and line breaks escaped, at most `most` characters.

    >>> one_line("two\\nlines", most=5)
    'two\\\\n…'
    """
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: most + 1])
    return text if len(text) <= most else f"{text[:most]}…"


def whole_characters(text: str) -> str:
    """The text with halves of characters (lone surrogates), which no file can hold, as escapes.

    >>> whole_characters("a\\ud83d")
    'a\\\\ud83d'
    """
    return text.encode(errors="backslashreplace").decode()


def headline(error: BaseException) -> str:
    """The exception and the first line of its message.

    >>> headline(ValueError("\\nodd length\\nof 3")), headline(AssertionError())
    ('ValueError: odd length', 'AssertionError')
    """
    lines = [line for line in "".join(traceback.format_exception_only(error)).splitlines() if line.strip()]
    # Above the name of a SyntaxError is its code, indented.
    at = next(number for number, line in enumerate(lines) if not line[0].isspace())
    end = at + 2 if lines[at].endswith(": ") else at + 1  # the message begins with a new line
    return one_line(" ".join(line.strip() for line in lines[at:end]), MOST_CHARACTERS)


class GrpoError(Exception):
    """An error that the user can fix, in one line: the field or file (and line), what is wrong, what to do.

    The command line prints it without a traceback and exits with 2; `--debug` shows the traceback.
    """

    def __init__(self, message: str):
        super().__init__(one_line(message, MOST_CHARACTERS))


class DamagedRecordError(GrpoError):
    """A run's record cannot be read. Its checkpoints may still be intact."""


class DiskFullError(GrpoError):
    """The disk is full. Everything written before is intact, and the same write can be tried again."""


class RankError(GrpoError):
    """Another rank of the run ended with an error; all ranks end with it."""


class LostRankError(GrpoError):
    """A rank of the run is gone or does not answer. The run can be resumed; the command line exits with 1."""
