"""Reads units of measure and currencies, and converts them exactly.

A table, not a units library: those read any prefix before any symbol, so that ordinary words become units, and take a
third of a second to load in every process that checks answers.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

MOST_FACTORS = 8
"""Units multiplied in one compound unit; a longer product is not read to its end."""
MOST_READINGS = 8

Dimension = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Unit:
    """A multiple of base units: km is 1000 m.

    >>> read_unit("km/h")[0][0]
    Unit(factor=Fraction(5, 18), dimension=(('m', 1), ('s', -1)), total=None)
    """

    factor: Fraction
    dimension: Dimension
    total: Unit | None = None
    """The unit without its "per day", for pay and hours: a question about a day's pay is answered by "$18" too."""

    @property
    def is_money(self) -> bool:
        return self.dimension in MONEY

    def ratio(self, other: Unit) -> Fraction | None:
        """What one of this unit is in the other; None where they measure different things."""
        mine, its = self, other
        if mine.total and not its.total:
            mine = mine.total
        elif its.total and not mine.total:
            its = its.total
        return mine.factor / its.factor if mine.dimension == its.dimension else None


TABLE = """
1                m           m meter metre  +kcdmµn
0.0254           m           in inch inches
0.3048           m           ft foot feet
0.9144           m           yd yard
1609.344         m           mi mile
1852             m           nautical_mile
1/10000000000    m           angstrom Å
9460730472580800 m           light_year lightyear
10000            m2          ha hectare
4046.8564224     m2          acre
0.001            m3          L liter  +mcd
0.001            m3          l litre  +mcd
0.003785411784   m3          gal gallon
0.000946352946   m3          qt quart
0.000473176473   m3          pint
0.0002365882365  m3          cup
0.00001478676478125 m3       tbsp tablespoon
0.00000492892159375 m3       tsp teaspoon
0.0000295735295625 m3        oz ounce fl_oz fluid_oz fluid_ounce
1                g           g gram gramme  +kmµ
1000000          g           tonne metric_ton
907184.74        g           ton
6350.29318       g           stone
453.59237        g           lb pound
28.349523125     g           oz ounce
1                s           s sec second  +mµn
60               s           min minute
3600             s           h hr hour
86400            s           day
604800           s           week
1209600          s           fortnight
2592000          s           month
31536000         s           yr year
1                month       month
12               month       yr year
120              month       decade
1200             month       century centuries
5/18             m/s         kmh kph kmph
0.44704          m/s         mph
463/900          m/s         knot
1000             g*m/s2      N newton  +mk
1000             g*m2/s2     J joule  +kM
1000             g*m2/s2     Nm
4184             g*m2/s2     cal calorie  +k
1000             g*m2/s3     W watt  +mkMG
3600000          g*m2/s2     Wh  +kMG
1000             g/m/s2      Pa pascal  +hkM
100000000        g/m/s2      bar
100000           g/m/s2      mbar millibar
101325000        g/m/s2      atm atmosphere
1000             g*m2/s3/A   V volt  +km
1                A           amp ampere
0.001            A           milliamp milliampere
1000             g*m2/s3/A2  ohm Ω  +kM
1                1/s         Hz hertz  +kMG
1                mol         mol mole  +mµn
1                bit         bit  +kMG
8                bit         byte  +kMGT
8000             bit         kB KB
8000000          bit         MB
8000000000       bit         GB
8000000000000    bit         TB
8192             bit         KiB
8388608          bit         MiB
8589934592       bit         GiB
1                bit/s       bps  +kMG
1/60             1/s         rpm
1                degree      degree
1                radian      rad radian
1                celsius     degree celsius degree_celsius degrees_celsius degree_C degrees_C
1                fahrenheit  degree fahrenheit degree_fahrenheit degrees_fahrenheit degree_F degrees_F
1                kelvin      kelvin
1                am          am
1                pm          pm
1                USD         USD dollar US_dollar US$ $ buck
0.01             USD         cent ¢ penny pennies
0.05             USD         nickel
0.1              USD         dime
0.25             USD         quarter
1                EUR         EUR euro €
0.01             EUR         cent
1                GBP         GBP pound £
0.01             GBP         pence penny pennies
1                JPY         JPY yen ¥
1                CNY         CNY yuan ¥
1                INR         INR rupee ₹
1                KRW         KRW ₩
1                CHF         CHF franc
1                CAD         CAD Canadian_dollar C$
1                AUD         AUD Australian_dollar A$
1                MXN         MXN peso
1                RUB         RUB ruble rouble
1                SEK         SEK
1                NOK         NOK
1                DKK         DKK
1                BRL         BRL
1                HKD         HKD
1                NZD         NZD
1                SGD         SGD
"""
"""Factor, base units, names, and SI prefixes after a plus. The first name of a unit with prefixes is its symbol. Every
name has a plural in s. A name on several lines has several readings; a pound is a mass or money."""

PREFIXES = {
    **{"n": ("nano", -9), "µ": ("micro", -6), "m": ("milli", -3), "c": ("centi", -2), "d": ("deci", -1)},
    **{"h": ("hecto", 2), "k": ("kilo", 3), "M": ("mega", 6), "G": ("giga", 9), "T": ("tera", 12)},
}


def _dimension(exponents: dict[str, int]) -> Dimension:
    return tuple(sorted((base, power) for base, power in exponents.items() if power))


def _bases(text: str) -> Dimension:
    """
    >>> _bases("g*m2/s2")
    (('g', 1), ('m', 2), ('s', -2))
    """
    found = re.findall(r"([*/]|^)([A-Za-z]+)(\d?)", text)
    return _dimension({base: int(power or 1) * (-1 if sign == "/" else 1) for sign, base, power in found})


def _names() -> dict[str, tuple[Unit, ...]]:
    names: dict[str, tuple[Unit, ...]] = {}

    def add(name: str, unit: Unit) -> None:
        name = name.replace("_", " ")
        for spelling in (name, f"{name}s") if len(name) > 1 else (name,):
            names[spelling] = (*names.get(spelling, ()), unit)

    for line in TABLE.strip().splitlines():
        factor, bases, *words = line.split()
        unit = Unit(Fraction(factor), _bases(bases))
        prefixes = words.pop()[1:] if words[-1].startswith("+") else ""
        symbol, *spelled = words
        for name in words:
            add(name, unit)
        for prefix in prefixes:
            word, power = PREFIXES[prefix]
            larger = Unit(unit.factor * Fraction(10) ** power, unit.dimension)
            for name in (prefix + symbol, *(word + name for name in spelled)):
                add(name, larger)
    return names


NAMES = _names()
FOLDED = {name.lower(): readings for name, readings in NAMES.items() if len(name) > 2}
CODES = tuple(dict.fromkeys(re.findall(r"^\S+ +([A-Z]{3}) ", TABLE, re.MULTILINE)))
"""Of the currencies."""
MONEY = frozenset(_bases(code) for code in CODES)
TIME = frozenset(_bases(base) for base in ("s", "month"))
BEFORE = {"sq": 2, "square": 2, "cu": 3, "cubic": 3}
AFTER = {"squared": 2, "cubed": 3}
PER = frozenset({"/", "per", "a", "an", "each", "every"})
TOKEN = re.compile(
    r"\s*(?:\^\s*\{?\s*(?P<power>-?\d)\s*\}?|(?<=[A-Za-z])(?P<digit>[23])(?![\d.])"
    r"|(?P<sign>[/*·()-]|\\cdot|\\times)|(?P<word>[A-Z]*\$|[€£¥₹₩¢]|[ap]\.m\.?|[A-Za-zµμΩ]+\.?))"
)


@lru_cache(maxsize=4096)
def read_unit(text: str) -> tuple[tuple[Unit, ...], str]:
    """The readings of the unit that a text starts with, and the text after it.

    >>> [unit.dimension for unit in read_unit("pounds of flour")[0]], read_unit("pounds of flour")[1]
    ([(('g', 1),), (('GBP', 1),)], 'of flour')
    >>> read_unit("apples"), read_unit("in all")
    (((), 'apples'), ((), 'in all'))
    """
    factors, end = _factors(text)
    rest = text[end:].strip()
    if not factors or (rest and text[:end].strip() == "in"):
        return (), text
    choices = itertools.islice(itertools.product(*(readings for readings, _ in factors)), MOST_READINGS)
    return tuple(_product(choice, [power for _, power in factors]) for choice in choices), rest


def _factors(text: str) -> tuple[list[tuple[tuple[Unit, ...], int]], int]:
    """The units multiplied at the start of a text, each with its power, and where the last of them ends."""
    factors: list[tuple[tuple[Unit, ...], int]] = []
    place = end = 0
    ahead, below, group = 1, False, False
    while len(factors) < MOST_FACTORS and (token := TOKEN.match(text, place)):
        word = (token["sign"] or token["word"] or "").rstrip(".")
        power = int(token["power"] or token["digit"] or AFTER.get(word.lower(), 0))
        if power and factors and end == place:
            factors[-1] = (factors[-1][0], factors[-1][1] * power)
            place = end = token.end()
        elif word.lower() in PER and factors:
            place, below = token.end(), True
        elif word.lower() in BEFORE:
            place, ahead = token.end(), BEFORE[word.lower()]
        elif token["sign"] and word != "/":
            place, group = token.end(), word == "(" or (group and word != ")")
            below, end = (below and group, place) if word == ")" else (below, end)
        else:
            readings, place = _named(text, token)
            if not readings:
                break
            factors.append((readings, -ahead if below else ahead))
            end, ahead, below = place, 1, below and group
    return factors, end


def _named(text: str, token: re.Match[str]) -> tuple[tuple[Unit, ...], int]:
    """The unit of one word, or of two ("fluid ounces"), and where it ends."""
    after = TOKEN.match(text, token.end())
    if after and after["word"] and (readings := _known(f"{token['word']} {after['word']}")):
        return readings, after.end()
    return _known(token["word"] or ""), token.end()


def _known(name: str) -> tuple[Unit, ...]:
    """Symbols differ by case: mW, MW. Words do not, nor do "KM" and "Kg"."""
    name = name.replace("μ", "µ").replace(".", "")
    lower = name.lower()
    return NAMES.get(name) or (
        FOLDED.get(lower, ()) if len(name) > 2 else NAMES.get(lower, ()) if len(name) > 1 else ()
    )


def is_unit(word: str) -> bool:
    return bool(_known(word))


def _product(units: Sequence[Unit], powers: Sequence[int]) -> Unit:
    whole = _multiplied(list(zip(units, powers, strict=True)))
    above = _multiplied([(unit, power) for unit, power in zip(units, powers, strict=True) if power > 0])
    is_rate = min(powers) < 0 and (above.is_money or above.dimension in TIME)
    return replace(whole, total=above) if is_rate else whole


def _multiplied(parts: Sequence[tuple[Unit, int]]) -> Unit:
    factor, exponents = Fraction(1), Counter[str]()
    for unit, power in parts:
        factor *= unit.factor**power
        for base, exponent in unit.dimension:
            exponents[base] += exponent * power
    return Unit(factor, _dimension(exponents))
