"""Answers made at random: numbers in every notation, units, money, words, formulas, and damaged or hostile text."""

from __future__ import annotations

import random

DIGITS = ["0", "3", "18", "-7", "1,234", "1{,}234", "1 234", "0.5", ".25", "1e3", "2/3", r"\frac{1}{2}", "3 1/2", "007"]
EXPONENTS = ["", "", "", " × 10²³", r" \times 10^{-3}", "e5", "*10^4", "E+2", "e999999999"]
SCALES = ["", "", "", " million", " dozen", " thirds", "%", r"\%", " hundred thousand", " half", " and a half", "k"]
UNITS = [
    *("", "", " m", "cm", r"\text{ km}", r"\,\mathrm{m\,s^{-1}}", " km/h", " m^2", " m²", " sq ft", " ml", "°", " °C"),
    *(r"^\circ", " dollars", " cents per day", " €", " apples", " hours a week", " pm", " in", " kg m/s^2", " square"),
]
MONEY = ["", "", "", "$", "€", "£", r"\$", "USD ", "¥", "US$"]
WORDS = ["three", "twenty-one", "two hundred and five", "a dozen", "half a mile", "minus one third", "Seven Samurai"]
MARKED = ["101_2", "1F_{16}", "101 base 2", "5_{10}", r"2 \pmod{5}", "7 mod 5", r"x \equiv 2 \pmod 5", "2 (mod 0)"]
SYMBOLS = ["x", "y", "n", "2x", "xy", r"\pi", r"\sqrt{2}", "3", "(x+1)", r"\frac{a}{b}", "x^2", "x²", "4!", r"\sin x"]
WHOLE = [
    *(r"\emptyset", r"\varnothing", "{}", r"\{1,2\}", "(1,2)", "[1,2)", "x=1, y=2", "(x,y)=(1,2)", "1, 2", "x>2"),
    *("yes", "No.", "Paris", "B", "(C)", "A) Paris", "3:4", r"\begin{pmatrix}1\\2\end{pmatrix}", "2024-01-01", "∞"),
    *("10^{10^{10}}", "9^9^9^9", "99999!", "", " ", "\n", "$", r"\frac", "{", "}", "_", "^", r"\boxed{", "\x00", "٣"),
]
AROUND = [
    *(
        "{}",
        "{}",
        "{}",
        "{}.",
        "${}$",
        r"\boxed{{{}}}",
        "#### {}",
        "<answer>{}</answer>",
        "The answer is {}.",
        "**{}**",
    ),
    *("So she makes {} every day.", "Answer: {}", "{}\n{}", "x = {}", r"\[{}\]", "{} or {}", "-{}", r"\text{{{}}}"),
]
DAMAGE = [
    "{",
    "}",
    "\\",
    "$",
    "^",
    "_",
    "/",
    ",",
    ".",
    " ",
    "-",
    "0",
    "9" * 40,
    "(",
    ")",
    "\u0664",
    "m",
    "½",
    "²",
    "e",
    "=",
]


def made_gold(rng: random.Random) -> str:
    """One answer, without text around it."""
    kind = rng.random()
    if kind < 0.55:
        parts = [rng.choice(MONEY), rng.choice(DIGITS), rng.choice(EXPONENTS), rng.choice(SCALES), rng.choice(UNITS)]
        return "".join(parts)
    if kind < 0.7:
        return rng.choice(WORDS) + rng.choice(UNITS)
    if kind < 0.82:
        return rng.choice(MARKED)
    if kind < 0.9:
        return rng.choice("+-*/,= ").join(rng.choices(SYMBOLS, k=rng.randint(1, 4)))
    return rng.choice(WHOLE)


def made_answer(rng: random.Random) -> str:
    """A completion: an answer in some form, one in five of them damaged."""
    around = rng.choice(AROUND)
    text = around.format(*(made_gold(rng) for _ in range(2)))
    for _ in range(rng.choice([0, 0, 0, 0, 1, 4])):
        place = rng.randint(0, len(text))
        text = text[:place] + rng.choice(DAMAGE) * rng.choice([1, 1, 2, 200]) + text[place + rng.randint(0, 3) :]
    return text
