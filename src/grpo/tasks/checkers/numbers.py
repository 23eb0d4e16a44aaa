"""Reads numbers as people and models write them, exactly: `$1,234.50`, `1{,}234`, `−3`, `3 1/2`, `1.5e3`, `50%`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 200
"""Characters; longer texts are not numbers."""
LARGEST_EXPONENT = 400


@dataclass(frozen=True)
class Number:
    """A number as written, and its scale: 50% is 50 at scale 1/100; 5 million is 5 at scale 10**6.

    >>> read_number(r"\\$1{,}234.50"), read_number("−3 1/2 km").value, read_number("3x")
    (Number(face=Fraction(2469, 2), scale=Fraction(1, 1)), Fraction(-7, 2), None)
    """

    face: Fraction
    scale: Fraction = Fraction(1)

    @property
    def value(self) -> Fraction:
        return self.face * self.scale

    def same(self, other: Number) -> bool:
        """Whether both are equal. Where only one has a percent sign or "million", either reading of the other counts.

        >>> [read_number("50%").same(read_number(text)) for text in ("50%", "50", "0.5", "0.5%", "5")]
        [True, True, True, False, False]
        """
        if self.scale == other.scale:
            return self.face == other.face
        if 1 in (self.scale, other.scale):
            return self.face == other.face or self.value == other.value
        return self.value == other.value


DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?:[ ]\d{3})+|\d+)(?:\.\d*)?|\.\d+"
EXPONENT = (
    r"(?:[eE](?P<e>[+-]?\d+)|[ ]?(?:\\times|\\cdot|[*x])[ ]?10[ ]?\^[ ]?(?:\{(?P<ten>[+-]?\d+)\}|(?P<ten1>[+-]?\d+)))"
)
DECIMAL = rf"(?P<decimal>{DIGITS}){EXPONENT}?"
FRACTION = r"(?:(?P<whole>\d+)[ ]?)?\\frac(?:\{(?P<a>[^{}]+)\}\{(?P<b>[^{}]+)\}|(?P<a1>\d)(?P<b1>\d))"
SLASHED = rf"(?:(?P<whole1>\d+)[ ])?(?P<a2>{DIGITS})[ ]?/[ ]?(?P<b2>{DIGITS})"
NUMBER = re.compile(
    rf"(?P<sign>[+-])?[ ]?(?P<money>[$£€¥₹])?[ ]?(?P<sign1>[+-])?[ ]?(?:{FRACTION}|{SLASHED}|{DECIMAL})[ ]?(?P<unit>.*)"
)
SCALES = {
    **dict.fromkeys(("%", "percent", "cent", "cents"), Fraction(1, 100)),
    **dict.fromkeys(("half", "halves"), Fraction(1, 2)),
    **dict.fromkeys(("third", "thirds"), Fraction(1, 3)),
    **dict.fromkeys(("quarter", "quarters"), Fraction(1, 4)),
    **{"dozen": Fraction(12), "hundred": Fraction(100), "thousand": Fraction(1000)},
    **{"million": Fraction(10**6), "billion": Fraction(10**9), "trillion": Fraction(10**12)},
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHORT_UNITS = _words("m s g h l L J N W V mm cm dm km ft yd mi in kg mg lb oz ml cl hr ms am pm")
JOINING = _words("a an per of us")
NO_UNIT = _words("or and to by mod over times plus minus pi sqrt sin cos tan log ln exp not")
"""Words that are not units: the number before them is only part of the answer."""
UNIT = re.compile(r"[A-Za-z°²³µ'/.()\^\- ]|(?<=\^)\{?[23]\}?")

LOOKALIKES = str.maketrans(
    {
        **dict.fromkeys("−–—‒﹣－", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f\u2007\u2005\u200a\t\n", " "),
        "×": r"\times ",
        "⁄": "/",
        "½": " 1/2",
        "⅓": " 1/3",
        "⅔": " 2/3",
        "¼": " 1/4",
        "¾": " 3/4",
        "％": "%",
        "，": ",",
    }
)
TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
SPACES = re.compile(r"(?<!\\)\\[,;:! ]|\\q?quad(?![A-Za-z])|~|[ ]+")
DECORATION = re.compile(r"\\left(?![A-Za-z])|\\right(?![A-Za-z])|\\displaystyle|\\[()\[\]]|\*\*|`|(?<!\\)\$(?!\d)")
DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?|\s*°(?![CFK])|\s*\\degrees?(?![A-Za-z])")


def plain(text: str) -> str:
    """The answer without typesetting: LaTeX dollars, bold, thin spaces, `\\text{}`, `\\left`.

    >>> plain(r"**$\\dfrac{1}{2}\\text{ cm}$**.")
    '\\\\frac{1}{2} cm'
    """
    text = text.translate(LOOKALIKES).replace("{,}", ",").replace(r"\%", "%").replace(r"\$", "$")
    text = text.replace(r"\!", "").replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac")
    text = TEXT_COMMAND.sub(r" \1 ", text)
    text = DECORATION.sub("", DEGREES.sub("", text))
    return SPACES.sub(" ", text).strip().rstrip(".;,:").strip()


def read_number(text: str) -> Number | None:
    """The number in a text that is only a number, with currency, percent sign or unit; None for any other text."""
    if len(text) > LONGEST or "\n" in text.strip():
        return None
    found = NUMBER.fullmatch(_unassigned(plain(text)))
    if found is None:
        return None
    part = found.groupdict()
    scale = _scale(part["unit"].strip())
    face = _magnitude(part)
    if scale is None or face is None or (part["sign"] and part["sign1"]):
        return None
    return Number(-face if "-" in (part["sign"], part["sign1"]) else face, scale)


def _unassigned(text: str) -> str:
    """The text without the "x =" of "x = 3" and the "≈" of "≈ 3"."""
    return re.sub(r"^(?:[A-Za-z]\w*\s*=\s*)?(?:(?:≈|\\approx)\s*)?", "", text)


def _magnitude(part: dict[str, str | None]) -> Fraction | None:
    if part["decimal"]:
        exponent = int((part["e"] or part["ten"] or part["ten1"] or "0")[:6])
        return _digits(part["decimal"]) * Fraction(10) ** exponent if abs(exponent) <= LARGEST_EXPONENT else None
    above, below = (part["a"] or part["a1"] or part["a2"], part["b"] or part["b1"] or part["b2"])
    whole = part["whole"] or part["whole1"] or "0"
    pair = [_signed_digits(value or "") for value in (above, below)]
    if pair[0] is None or not pair[1]:
        return None
    return int(whole) + pair[0] / pair[1]


def _signed_digits(text: str) -> Fraction | None:
    found = re.fullmatch(rf"\s*(-?)\s*({DIGITS})\s*", text)
    return (-1 if found[1] else 1) * _digits(found[2]) if found else None


def _digits(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").rstrip("."))


def _scale(unit: str) -> Fraction | None:
    """The scale of a unit: 1 for none or a plain one; None where the text is not a unit."""
    if not unit:
        return Fraction(1)
    first, _, rest = unit.replace("%", "% ").partition(" ")
    if first.lower() in SCALES:
        return SCALES[first.lower()] if _scale(rest.strip()) is not None else None
    words = re.findall(r"[A-Za-z]+", unit)
    if UNIT.sub("", unit) or not words or not all(_may_be_unit(word) for word in words):
        return None
    return Fraction(1)


def _may_be_unit(word: str) -> bool:
    return word in SHORT_UNITS or word.lower() in JOINING or (len(word) > 2 and word.lower() not in NO_UNIT)
