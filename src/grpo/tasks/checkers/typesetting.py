"""Removes typesetting from an answer: LaTeX commands, Markdown, Unicode variants of the same character."""

from __future__ import annotations

import re

LOOKALIKES = str.maketrans(
    {
        **dict.fromkeys("−–—‒﹣－", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f\u2007\u2005\u200a\t\n", " "),
        **dict.fromkeys("·⋅•", r"\cdot "),
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
SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
MATH = re.compile(r"(?<!\\)\$\$?((?:[^$\\]|\\.)+)\$\$?")
"""Between LaTeX dollars. A single dollar before a digit is money."""
TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
SPACES = re.compile(r"(?<!\\)\\[,;:! ]|\\q?quad(?![A-Za-z])|~|[ ]+")
PYTHON_POWER = re.compile(r"(?<=[\w)])\*\*(?=[-(\w])")
DECORATION = re.compile(r"\\left(?![A-Za-z])|\\right(?![A-Za-z])|\\displaystyle|\\[()\[\]]|\*\*|`|(?<!\\)\$(?!\d)")
DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?|\s*°|\s*\\degrees?(?![A-Za-z])")


def plain(text: str) -> str:
    """The answer without typesetting: LaTeX dollars, bold, thin spaces, degree signs, `\\text{}`, `\\left`.

    >>> plain(r"**$\\dfrac{1}{2}\\text{ cm}$**."), plain("10²³"), plain("$5$"), plain(r"\\$5")
    ('\\\\frac{1}{2} cm', '10^{23}', '5', '$5')
    """
    if "$" in text:
        text = MATH.sub(r"\1", text)
    text = SUPERSCRIPT.sub(lambda power: f"^{{{power[0].translate(LOWERED)}}}", text)
    text = text.translate(LOOKALIKES).replace("{,}", ",").replace(r"\%", "%").replace(r"\$", "$")
    text = text.replace(r"\!", "").replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac")
    text = TEXT_COMMAND.sub(r" \1 ", text)
    text = DECORATION.sub("", DEGREES.sub("", PYTHON_POWER.sub("^", text)))
    return SPACES.sub(" ", text).strip().rstrip(".;,:").strip()
