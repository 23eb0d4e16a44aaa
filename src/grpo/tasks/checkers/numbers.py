"""Reads numbers as people write them: `1,234`, `3 1/2`, `6.02 × 10²³`, `$5 million`, `5 km/h`, `101_2`, `twenty`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from grpo.tasks.checkers.typesetting import DEGREES, plain
from grpo.tasks.checkers.units import AFTER, CODES, NAMES, Unit, is_unit, read_unit
from grpo.tasks.checkers.words import FRACTIONS, SCALES, SMALL, STARTS, spelled_number

LONGEST = 200
"""Characters; longer texts are not numbers."""
LARGEST_EXPONENT = 400


@dataclass(frozen=True)
class Number:
    """A number and what it counts: a percentage, an amount of a unit, digits in a base, a residue.

    >>> read_number(r"\\$1{,}234.50").face, read_number("−3 1/2 km").face, read_number("5 million").face
    (Fraction(2469, 2), Fraction(-7, 2), Fraction(5000000, 1))
    >>> read_number("101_2"), read_number("3x")
    (Number(face=Fraction(5, 1), percent=False, units=(), base=2, modulus=0), None)
    """

    face: Fraction
    percent: bool = False
    units: tuple[Unit, ...] = ()
    """Readings of its unit; none for a noun such as "apples"."""
    base: int = 10
    modulus: int = 0
    """Of a residue; 0 for none."""

    @property
    def value(self) -> Fraction:
        return self.face / 100 if self.percent else self.face

    def same(self, other: Number) -> bool:
        """Whether both are equal. A number without a unit is in the other's unit.

        >>> [read_number("50%").same(read_number(text)) for text in ("50%", "50", "0.5", "0.5%", "5")]
        [True, True, True, False, False]
        >>> [read_number("5 m").same(read_number(text)) for text in ("5", "500 cm", "5 apples", "5 cm", "5 s", "5%")]
        [True, True, True, False, False, False]
        """
        if (self.base, self.modulus) != (other.base, other.modulus):
            return False
        if self.modulus:
            return (self.face - other.face) % self.modulus == 0
        if self.percent != other.percent and (self.units or other.units):
            return False
        if self.units and other.units:
            ratios = (one.ratio(two) for one in self.units for two in other.units)
            return any(ratio is not None and self.face * ratio == other.face for ratio in ratios)
        return self.face == other.face if self.percent and other.percent else bool(self.readings & other.readings)

    def difference(self, other: Number) -> str:
        """Why the other is not the same: "base", "modulus", "unit" where no conversion exists, or "number"."""
        if self.base != other.base:
            return "base"
        if self.modulus != other.modulus:
            return "modulus"
        ratios = [one.ratio(two) for one in self.units for two in other.units]
        return "number" if any(ratios) or not ratios else "unit"

    @property
    def readings(self) -> set[Fraction]:
        """The values that it may have to a reader who expects no mark: 50% is 50 or 0.5, 50 cents are 50 or 0.5."""
        amounts = {self.face * (unit.total or unit).factor for unit in self.units if (unit.total or unit).is_money}
        return {self.face, self.value, *amounts}


DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?:[ ]\d{3})+|\d+)(?:\.\d*)?|\.\d+"
POWER_OF_TEN = r"10[ ]?\^[ ]?(?:[{(](?P<ten%s>[+-]?\d+)[)}]|(?P<bare_ten%s>[+-]?\d+))"
EXPONENT = rf"(?:[eE](?P<e>[+-]?\d+)|[ ]?(?:\\times|\\cdot|[*x])[ ]?{POWER_OF_TEN % ('', '')})"
DECIMAL = rf"(?:{POWER_OF_TEN % (1, 1)}|(?P<decimal>{DIGITS}){EXPONENT}?)"
FRACTION = r"(?:(?P<whole>\d+)[ ]?)?\\frac(?:\{(?P<a>[^{}]+)\}\{(?P<b>[^{}]+)\}|(?P<a1>\d)(?P<b1>\d))"
SLASHED = rf"(?:(?P<whole1>\d+)[ ])?(?P<a2>{DIGITS})[ ]?/[ ]?(?P<b2>{DIGITS})"
MONEY = rf"US\$|[CA]\$|[$£€¥₹₩]|(?:{'|'.join(CODES)})(?![A-Za-z])"
CURRENCY = re.compile(MONEY)
NUMBER = re.compile(
    rf"(?P<sign>[+-])?[ ]?(?P<money>{MONEY})?[ ]?(?P<sign1>[+-])?[ ]?(?:{FRACTION}|{SLASHED}|{DECIMAL})[ ]?(?P<tail>.*)"
)
RESIDUE = re.compile(
    r"(?:(?:[A-Za-z]|-?\d+)[ ]?(?:\\equiv|≡)[ ]?)?(-?\d+)[ ]?,?"
    r"[ ]?\(?[ ]?\\?[pb]?mod(?:ulo)?[ ]?[{(]?[ ]?(\d+)[ ]?[)}]*"
)
BASED = re.compile(
    r"(-?)\(?([\dA-Fa-f ]+)\)?[ ]?"
    r"(?:_[ ]?\{?[ ]?(?:base[ ]?)?(\d+|[a-z]+)[ ]?\}?|\(?(?:in )?base[ -]?(\d+|[a-z]+)\)?)"
)
PERCENT = re.compile(r"%|(?:percent|per cent|percentage points?)(?![A-Za-z])", re.IGNORECASE)
RATE = re.compile(r"/|(?:per|a|an|each|every)(?![A-Za-z])")
UNIT_FRACTION = re.compile(r"\\frac\{\s*([A-Za-z][^{}\d]*)\}\{\s*([A-Za-z][^{}]*)\}")
SHORT_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "mn": 10**6, "B": 10**9, "bn": 10**9}
"""After a currency: $5k."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


JOINING = _words("a an in per of us")
NO_NOUN = _words("or and to by mod base over times plus minus pi sqrt sin cos tan log ln exp not factorial")
"""Words that are neither nouns nor units: the number before them is only part of the answer."""
WORD = re.compile(r"[A-Za-z]+")
ASSIGNED = re.compile(r"^(?:[A-Za-z]\w*\s*=\s*)?(?:(?:≈|\\approx)\s*)?")
MINUS = re.compile(r"^(?:minus|negative) (?=[$\d.])", re.IGNORECASE)
AMOUNTS = re.compile(rf"({DIGITS})[ ]?([A-Za-z]+)(?:,?[ ](?:and[ ])?|$)")
NOUN = re.compile(r"(?:[A-Za-z'/.()\- ]|\^\{?[23]\}?)*")


@lru_cache(maxsize=4096)
def read_number(text: str) -> Number | None:
    """The number in a text that is only a number, with what it counts; None for any other text. Cached: golds are read
    again for every completion."""
    if len(text) > LONGEST or "\n" in text.strip():
        return None
    bare = _unassigned(UNIT_FRACTION.sub(r" \1/(\2)", plain(DEGREES.sub(" degrees ", text))))
    found = NUMBER.fullmatch(bare)
    if found and (number := _written(found.groupdict())):
        return number
    if len(amounts := AMOUNTS.findall(bare)) > 1 and not AMOUNTS.sub("", bare):
        return _summed(amounts)
    if "mod" in bare and (residue := RESIDUE.fullmatch(bare)) and int(residue[2]):
        return Number(Fraction(int(residue[1])), modulus=int(residue[2]))
    if ("_" in bare or "base" in bare) and (based := BASED.fullmatch(bare)):
        return _in_base(based[1], based[2].replace(" ", ""), based[3] or based[4])
    if re.split("[ -]", bare, maxsplit=1)[0].lower() in STARTS and (spelled := spelled_number(bare)):
        # With a noun it may be a name: Seven Samurai.
        return _counted(*spelled, nouns=False)
    return None


FOLLOWING = re.compile(r"(?:\^\{?-?\d\}?|[^\n,;:!?.\d\"])*")
IN_TEXT = re.compile(
    r"[A-Za-z)\]}]\s?[\^_]\s?(?:\{[^{}\n]{0,20}\}|[-−]?\d+)"  # a power or an index, which is not a number of its own
    r"|(?P<number>(?:(?:(?<=^)|(?<=[=:(\[{$£€>]))\s{0,3}[-−–]\s?|(?<![\w)\]}.,])[-−–])?[$£€¥₹]?"
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?(?:/\d+(?![\d/]))?|(?<!\d)\.\d+)"
    r"(?:\s?(?:\\times|\\cdot|[×·*x])\s?10\s?(?:\^\s?\{?[+−-]?\d+\}?|[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+)"
    r"|_\{?\d{1,2}\}?|\s?\(?\\?[pb]?mod(?:ulo)?\s?\{?\d+\}?\)?)?\s?\\?%?)"
)


def numbers_in(text: str) -> list[re.Match[str]]:
    return [found for found in IN_TEXT.finditer(text) if found["number"]]


def with_unit(found: re.Match[str]) -> str:
    """The number found in a text, with the scale words and the unit after it.

    >>> with_unit(numbers_in("It costs $5 million, or so.")[0]), with_unit(numbers_in("It has 5 eggs in it.")[0])
    ('$5 million', '5')
    """
    number = found["number"].strip()
    following = FOLLOWING.match(found.string[found.end() : found.end() + 60])
    tail = plain(DEGREES.sub(" degrees ", following[0])) if following else ""
    bare, currency = read_number(number), CURRENCY.match(number)
    if not tail or bare is None:
        return number
    money = currency[0] if currency else ""
    _, rest = _scaled(bare.face, tail, money)
    rest = read_unit(f"{money} {rest}" if money and RATE.match(rest) else rest)[1]
    longer = f"{number} {tail[: len(tail) - len(rest)]}".strip()
    return longer if read_number(longer) else number


def _unassigned(text: str) -> str:
    """The text without the "x =" of "x = 3" and the "≈" of "≈ 3", and with a sign for "minus"."""
    return MINUS.sub("-", ASSIGNED.sub("", text))


def _summed(amounts: list[tuple[str, str]]) -> Number | None:
    """The sum of amounts in ever smaller units: 18 dollars and 50 cents, 1 hour 30 minutes."""
    (digits, name), *others = amounts
    for unit in read_unit(name)[0]:
        total, smallest = _digits(digits), Fraction(1)
        for number, smaller in others:
            ratio = next((ratio for one in read_unit(smaller)[0] if (ratio := one.ratio(unit))), smallest)
            if ratio >= smallest:
                break
            total, smallest = total + _digits(number) * ratio, ratio
        else:
            return Number(total, units=(unit,))
    return None


def _written(part: dict[str, str | None]) -> Number | None:
    face = _magnitude(part)
    if face is None or (part["sign"] and part["sign1"]):
        return None
    face = -face if "-" in (part["sign"], part["sign1"]) else face
    return _counted(face, (part["tail"] or "").strip(), part["money"] or "")


def _magnitude(part: dict[str, str | None]) -> Fraction | None:
    power = part["e"] or part["ten"] or part["bare_ten"] or part["ten1"] or part["bare_ten1"]
    if part["decimal"] or power:
        exponent = int((power or "0")[:6])
        if abs(exponent) > LARGEST_EXPONENT:
            return None
        return _digits(part["decimal"] or "1") * Fraction(10) ** exponent
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


def _in_base(sign: str, digits: str, name: str) -> Number | None:
    base = int(name[:3]) if name.isdecimal() else SMALL.get(name, 0)
    named = digits[:1].isalpha() and len(digits) < 2  # A_2 is a name with an index
    if not digits or named or not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits):
        return None
    return Number(Fraction(int(f"{sign}{digits}", base)), base=base)


def _counted(face: Fraction, tail: str, money: str = "", nouns: bool = True) -> Number | None:
    """The number with the scale words, percent sign and unit that follow it; None where they are something else."""
    if not tail and not money:
        return Number(face)
    face, tail = _scaled(face, tail, money)
    percent = PERCENT.match(tail)
    if percent:
        tail = tail[percent.end() :].strip()
    if money and RATE.match(tail):
        tail = f"{money} {tail}"
    units, rest = read_unit(tail) if tail else ((), "")
    if rest and not (nouns and _is_noun(rest)):
        return None
    return Number(face, percent is not None, units or NAMES.get(money, ()))


def _scaled(face: Fraction, tail: str, money: str) -> tuple[Fraction, str]:
    """The number times the scale words after it, and the text after those."""
    part = re.match(r"and (?:a|one) ([a-z]+)", tail)
    if part and part[1] in FRACTIONS:
        face, tail = face + FRACTIONS[part[1]], tail[part.end() :].strip()
    while (found := WORD.match(tail)) and (scale := _scale(found[0], face, money)):
        face, tail = face * scale, tail[found.end() :].strip()
    return face, tail


def _scale(word: str, face: Fraction, money: str) -> Fraction | int | None:
    word_is_coin = word.lower() == "quarters" and abs(face) >= 4
    if word_is_coin or (word.lower() in FRACTIONS and abs(face) != 1):
        return None
    return SCALES.get(word.lower()) or FRACTIONS.get(word.lower()) or (SHORT_SCALES.get(word) if money else None)


def _is_noun(text: str) -> bool:
    words = [word for word in re.findall(r"[A-Za-z]+", text) if word.lower() not in JOINING]
    is_power = bool(words) and words[0].lower() in AFTER  # 5 squared, but not 5 units squared
    return bool(NOUN.fullmatch(text) and words) and not is_power and all(_may_be_noun(word) for word in words)


def _may_be_noun(word: str) -> bool:
    return (len(word) > 2 and word.lower() not in NO_NOUN) or is_unit(word)
