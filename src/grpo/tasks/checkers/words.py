"""Reads numbers written in words: `twenty-one`, `two hundred and five`, `a dozen`, `three quarters`, `5 million`."""

from __future__ import annotations

from fractions import Fraction

SMALL = {
    **{"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9},
    **{"ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16},
    **{"seventeen": 17, "eighteen": 18, "nineteen": 19},
}
TENS = {
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}
LARGE = {
    **{"hundred": 10**2, "thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7},
    **{"billion": 10**9, "trillion": 10**12, "quadrillion": 10**15, "quintillion": 10**18, "sextillion": 10**21},
}
FRACTIONS = {
    word: Fraction(1, part)
    for part, word in {
        **{2: "half", 3: "third", 4: "quarter", 5: "fifth", 6: "sixth", 7: "seventh", 8: "eighth", 9: "ninth"},
        **{10: "tenth", 11: "eleventh", 12: "twelfth", 13: "thirteenth", 14: "fourteenth", 15: "fifteenth"},
        **{16: "sixteenth", 17: "seventeenth", 18: "eighteenth", 19: "nineteenth", 20: "twentieth", 30: "thirtieth"},
        **{40: "fortieth", 50: "fiftieth", 60: "sixtieth", 70: "seventieth", 80: "eightieth", 90: "ninetieth"},
        **{100: "hundredth", 1000: "thousandth", 10**6: "millionth", 10**9: "billionth", 10**12: "trillionth"},
    }.items()
} | {"fourth": Fraction(1, 4)}
SCALES = {
    **{spelling: Fraction(value) for word, value in LARGE.items() for spelling in (word, f"{word}s")},
    **{"dozen": Fraction(12), "dozens": Fraction(12), "halves": Fraction(1, 2)},
    **{f"{word}s": part for word, part in FRACTIONS.items() if word != "half"},
}
"""Words that multiply the number before them. The singulars of `FRACTIONS` do so after a one only: "1 half"."""
NEGATIVE = frozenset({"minus", "negative"})
STARTS = frozenset({*SMALL, *TENS, *NEGATIVE, "a", "an", "half"})


def spelled_number(text: str) -> tuple[Fraction, str] | None:
    """The number that a text starts with in words, and the text after it.

    >>> spelled_number("twenty-one"), spelled_number("Two hundred and five km"), spelled_number("a dozen")
    ((Fraction(21, 1), ''), (Fraction(205, 1), 'km'), (Fraction(1, 1), 'dozen'))
    >>> spelled_number("one two"), spelled_number("a cat"), spelled_number("half a mile")
    (None, None, (Fraction(1, 2), 'mile'))
    """
    words = text.replace("-", " ").split()
    folded = [word.lower() for word in words]
    sign = -1 if folded and folded[0] in NEGATIVE else 1
    place = 1 if sign < 0 else 0
    if folded[place : place + 1] == ["half"]:
        place += 2 if folded[place + 1 : place + 2] in (["a"], ["an"]) else 1
        return Fraction(sign, 2), " ".join(words[place:])
    if folded[place : place + 1] in (["a"], ["an"]):
        known = folded[place + 1 : place + 2] and (folded[place + 1] in SCALES or folded[place + 1] in FRACTIONS)
        return (Fraction(sign), " ".join(words[place + 1 :])) if known else None
    value, end = _whole(folded, place)
    return (Fraction(sign * value), " ".join(words[end:])) if end > place and not _continues(folded, end) else None


def _continues(words: list[str], place: int) -> bool:
    return words[place : place + 1] != [] and (words[place] in SMALL or words[place] in TENS)


def _whole(words: list[str], place: int) -> tuple[int, int]:
    """A whole number from this place on, and where it ends."""
    total, current, step, limit = 0, 0, 100, 10**24
    end = place
    while place < len(words):
        word = words[place]
        if word in SMALL and SMALL[word] < step and (step > 10 or SMALL[word]):
            current, step = current + SMALL[word], 0
        elif word in TENS and step == 100:
            current, step = current + TENS[word], 10
        elif word == "hundred" and 0 < current < 100:
            current, step = current * 100, 100
        elif word in LARGE and word != "hundred" and current and LARGE[word] < limit:
            limit = LARGE[word]
            total, current, step = total + current * limit, 0, 100
        elif not (word == "and" and end > place - 1 and step == 100 and _continues(words, place + 1)):
            break
        place += 1
        end = place
    return total + current, end
