"""Finds the answer in a completion and compares it with the gold answer.

Strict forms: the last of `\\boxed{18}`, `#### 18`, `<answer>18</answer>`, "the answer is 18"; or a text that is only
the answer. Lenient forms: the last number, formula, letter or line. Numbers are compared exactly, with their units,
formulas by math-verify, words and letters ignoring case and punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from grpo.tasks.checkers import expressions
from grpo.tasks.checkers.numbers import Number, numbers_in, read_number, with_unit
from grpo.tasks.checkers.typesetting import MATH, plain

SEARCHED = 20_000
"""Characters searched, at the end of a completion."""
LONGEST = 400
"""Characters of one answer."""
LAST = 20
"""Candidates of each form that are tried, from the end: a text may hold thousands."""
UNVERIFIABLE = "cannot be compared without math-verify"


@dataclass(frozen=True)
class Verdict:
    """The answer found in a text, and whether it is right.

    >>> check("9 + 9 = 18, so the answer is $18.", "18")
    Verdict(right=True, strict=True, extracted='$18', form='sentence', why='same number')
    >>> check("I think 17.", "18")
    Verdict(right=False, strict=False, extracted='17', form='last number', why='other number')
    """

    right: bool
    strict: bool
    """Right, and in a strict form."""
    extracted: str
    form: str
    """Where the answer was found; "" where none could be parsed, which is not the same as wrong."""
    why: str

    @property
    def parsed(self) -> bool:
        return bool(self.form)


def check(text: str, gold: str, aliases: Sequence[str] = ()) -> Verdict:
    """Compare the text's final answer with the gold answer; `aliases` are other right answers."""
    verdict = _check(text, gold)
    for alias in aliases:
        verdict = verdict if verdict.right else max(verdict, _check(text, alias), key=lambda one: one.right)
    return verdict


def _check(text: str, gold: str) -> Verdict:
    text, kind = text[-SEARCHED:], kind_of(gold)
    for form, candidate in chain(explicit(text), [("bare", text.strip())], LENIENT[kind](text)):
        outcome = COMPARE[kind](candidate, gold, form) if candidate and len(candidate) <= LONGEST else None
        if outcome is not None:
            right, why = outcome
            return Verdict(bool(right), bool(right) and form in STRICT, candidate, "" if right is None else form, why)
    return Verdict(False, False, "", "", "no answer found")


def kind_of(gold: str) -> str:
    """How a gold answer is compared.

    >>> [kind_of(gold) for gold in ("1,234", "B", "Paris", r"\\text{even}", "3:4", r"\\frac{\\pi}{2}", "x", "pi")]
    ['number', 'choice', 'words', 'words', 'words', 'formula', 'formula', 'formula']
    """
    if read_number(gold):
        return "number"
    if expressions.is_empty_set(gold):
        return "formula"
    bare = plain(gold)
    if re.fullmatch(r"\(?[A-J]\)?", bare):
        return "choice"
    written_out = re.fullmatch(r"[^\W\d_][^\\^=+*/<>_{}()\[\]$]*", bare) and len(bare) > 1 and bare.lower() != "pi"
    return "words" if written_out or re.fullmatch(r"\d+(:\d+)+|\d+-\d+-\d+", bare) else "formula"


def normalised(text: str) -> str:
    """Words in lower case without punctuation, articles and LaTeX.

    >>> normalised(" The  Café. "), normalised("**Yes!**"), normalised(r"\\text{ True }")
    ('café', 'yes', 'yes')
    """
    words = re.sub(r"[^\w:+./%-]+", " ", plain(text).casefold()).strip(" .").split()
    phrase = " ".join(words[1:] if words[:1] in (["the"], ["a"], ["an"]) and len(words) > 1 else words)
    return {"true": "yes", "false": "no"}.get(phrase, phrase)


# Finding candidates. Each search is linear in the text: completions can be long, and hostile.

STRICT = frozenset({"box", "hashes", "tag", "sentence", "bare"})
SENTENCE = re.compile(
    r"\banswers?\b(?:[^\n.:=]{0,60}?\b(?:is|are|was|be)\b|[^\n.:=\w]{0,10}(?=[:=]))\W{0,3}?[:=]?", re.I
)
SENTENCE_END = re.compile(r"\.(?=\s|\*|$)|\n|(?<=[^\\])\s(?:because|since|as)\s|<[/|]?[A-Za-z][^<>\n]{0,30}>")


def explicit(text: str) -> list[tuple[str, str]]:
    """(form, candidate) of every strict form but "bare", the last in the text first."""
    found = [(start, "box", inside) for start, inside in boxes(text)]
    found += [(m.start(), "hashes", m[1].strip()) for m in _last(r"####[ \t]*([^\n#]{1,400})", text)]
    for opening in _last(r"<answer>", text):
        inside, closed, _ = text[opening.end() :].partition("</answer>")
        found += [(opening.start(), "tag", inside.strip())] if closed else []
    for start in _last(SENTENCE, text):
        rest = text[start.end() : start.end() + LONGEST].lstrip(" *:=\n")
        found.append((start.start(), "sentence", SENTENCE_END.split(rest, maxsplit=1)[0].strip(" *")))
    return [(form, candidate) for _, form, candidate in sorted(found, reverse=True)]


def _last(pattern: str | re.Pattern[str], text: str) -> list[re.Match[str]]:
    return list(re.finditer(pattern, text))[-LAST:]


def boxes(text: str) -> Iterator[tuple[int, str]]:
    r"""Start and content of every closed box.

    >>> list(boxes(r"so \boxed{\frac{1}{2}} and \boxed{5"))
    [(3, '\\frac{1}{2}')]
    """
    for opening in _last(r"\\(?:boxed|fbox)\s*\{", text):
        depth = 1
        for place, character in enumerate(text[opening.end() : opening.end() + LONGEST + 1]):
            depth += (character == "{") - (character == "}")
            if not depth:
                yield opening.start(), text[opening.end() : opening.end() + place].strip()
                break


def _last_number(text: str) -> Iterator[tuple[str, str]]:
    found = numbers_in(MATH.sub(r"\1", text[-2000:].replace("{,}", ",")))
    yield from [("last number", with_unit(found[-1]))] if found else []


def _last_formula(text: str) -> Iterator[tuple[str, str]]:
    found = re.findall(r"\$\$?([^$\n]{1,400})\$|\\[(\[]([^\n]{1,400}?)\\[)\]]", text[-4000:])
    yield from [("last formula", found[-1][0] or found[-1][1])] if found else []
    yield from [("last line", line) for line in text.strip().splitlines()[-1:]]


def _last_letter(text: str) -> Iterator[tuple[str, str]]:
    found = re.findall(r"\(([A-J])\)|(?<![\w'’])([B-HJ]|A(?![ ]\w)|I(?![ '’]\w))(?![\w'’])", text[-2000:])
    yield from [("last letter", found[-1][0] or found[-1][1])] if found else []


def _last_words(text: str) -> Iterator[tuple[str, str]]:
    yield from [("last line", line) for line in text.strip().splitlines()[-1:]]
    for form, pattern in (("last yes or no", r"\b(?:yes|no|true|false)\b"), ("last ratio", r"\d+(?:[:-]\d+)+")):
        found = re.findall(pattern, text[-2000:], re.I)
        yield from [(form, found[-1])] if found else []


LENIENT: dict[str, Callable[[str], Iterator[tuple[str, str]]]] = {
    "number": _last_number,
    "formula": _last_formula,
    "choice": _last_letter,
    "words": _last_words,
}

# Comparing. Each function returns (right, why); `right` is None for an answer that cannot be parsed. The whole result
# is None for a candidate that is not an answer of the gold's kind.

Outcome = tuple[bool | None, str] | None


def _compare_numbers(candidate: str, gold: str, form: str) -> Outcome:
    wanted, given = read_number(gold), _number_in(candidate, form)
    assert wanted is not None
    if candidate.count("=") > 1 and expressions.alternatives(plain(candidate)):
        return False, "several numbers"
    if given:
        return (True, "same number") if wanted.same(given) else (False, f"other {wanted.difference(given)}")
    if form in STRICT - {"bare"} and re.search(r"\d[^\d=]*\b(?:or|and)\b[^\d=]*\d", candidate):
        return False, "several numbers"
    if form not in STRICT or not re.search(r"\d|\\[a-z]+", candidate) or _is_prose(candidate, form):
        return None
    if expressions.side_by_side(plain(candidate)):
        return False, "several numbers"
    if re.search(r"\d\s*(?:[-+*/×÷·−]|\\times|\\cdot|\\div)\s*\(?\d", plain(candidate)):
        return False, "a calculation, not its result"
    return _as_formulas(candidate, gold, form)


def _number_in(candidate: str, form: str) -> Number | None:
    """The candidate as a number, or the part after its last equals sign; of a sentence, its only number."""
    if given := read_number(candidate):
        return given
    if "=" in candidate and (given := read_number(candidate.rpartition("=")[2])):
        return given
    if form in ("sentence", "hashes", "tag") and _is_prose(candidate, form):
        found = numbers_in(candidate)
        return read_number(with_unit(found[0])) if len(found) == 1 else None
    return None


def _is_prose(candidate: str, form: str) -> bool:
    """Whether it is words, not a formula. A whole text counts as a formula only where it has no word at all."""
    words = re.findall(r"(?<!\\)\b[A-Za-z]{2,}\b", re.sub(r"\\(?:begin|end)\{\w+\*?\}", "", candidate))
    words = [word for word in words if word not in ("pi", "sqrt") and not is_product(word)]
    return len(words) >= (1 if form == "bare" else 2)


def is_product(word: str) -> bool:
    """Whether letters may be variables multiplied: two letters, or three without a vowel, in lower case.

    >>> [is_product(word) for word in ("xy", "ab", "xyz", "abc", "cat", "no", "AB", "x")]
    [True, True, True, True, False, False, False, False]
    """
    return word == "abc" or re.fullmatch(r"[a-df-hj-np-tv-z]{2}|[b-df-hj-np-tv-z]{3}", word) is not None


def _compare_formulas(candidate: str, gold: str, form: str) -> Outcome:
    if not plain(gold):
        return False, "the gold answer is empty"
    if normalised(candidate) == normalised(gold) and plain(candidate).replace(" ", "") == plain(gold).replace(" ", ""):
        return True, "same text"
    if expressions.is_empty_set(gold) and expressions.is_empty_set(candidate):
        return True, "both the empty set"
    if not expressions.assigned(plain(candidate)) and _is_prose(plain(candidate), form):
        return None
    return _as_formulas(candidate, gold, form)


def _as_formulas(candidate: str, gold: str, form: str) -> Outcome:
    if not expressions.available():
        return None, UNVERIFIABLE
    same = expressions.equal(gold, candidate)
    if same is None:
        # A box that cannot be parsed is still the answer; the last number in 10^{10^{10}} is not.
        is_answer = form in ("box", "hashes", "tag") or (form == "bare" and re.search(r"\d\s*[!^]", candidate))
        return (None, "cannot be parsed as a formula") if is_answer else None
    return (True, "same formula") if same else (False, "other formula")


SEVERAL_LETTERS = re.compile(
    r"\(?([A-J])\)?(?:\s*[,;/&|]\s*(?:and |or )?|\s+(?:and|or)\s+|\s+(?=[^a-z]*$)|(?<=\))(?=\())"
    r"\(?(?!\1)(?:[A-HJ]|I(?![ '’]\w))(?![\w'’])"
)
"""Two options at the start: "A or B", "A, B, C", "(A)(B)". Not "A, I think", nor "A. B vitamins"."""


def _compare_choices(candidate: str, gold: str, form: str) -> Outcome:
    # After "the answer is", text may follow the letter, and a lone letter may be lower case. A bare "A" may start a
    # sentence.
    announced = form in STRICT - {"bare"}
    pattern = r"\(?([A-J])\)?(?:\W.*)?|\(?([a-j])\)?" if announced else r"\(?([A-J])\)?(?:[.):,].*)?|(\Z.)"
    bare = plain(candidate)
    if SEVERAL_LETTERS.match(bare):
        return False, "several letters"
    letter = re.fullmatch(pattern, bare, re.DOTALL)
    if letter is None:
        return None
    given = (letter[1] or letter[2]).upper()
    return (True, "same letter") if given == plain(gold).strip("()") else (False, "other letter")


def _compare_words(candidate: str, gold: str, form: str) -> Outcome:
    given, wanted = normalised(candidate), normalised(gold)
    if given == wanted:
        return True, "same words"
    letters = re.sub(r"\\cdot|\\times|[ *]", "", plain(candidate))
    if is_product(plain(gold)) and sorted(letters) == sorted(plain(gold)):
        return True, "same product"
    if re.match(r"(yes|no|true|false)(?: or | and |/)(?!\1)(?:yes|no|true|false)\b", given):
        return False, "several words"
    if wanted in ("yes", "no") and (first := re.match(r"(yes|no|true|false)\b", given)):
        return (True, "same word") if normalised(first[1]) == wanted else (False, "other word")
    words = wanted[:1].isalpha() and wanted not in ("yes", "no")
    short = form == "bare" and words and "\n" not in candidate and len(given.split()) <= 6
    return (False, "other words") if given and (short or form in STRICT - {"bare"}) else None


COMPARE: dict[str, Callable[[str, str, str], Outcome]] = {
    "number": _compare_numbers,
    "formula": _compare_formulas,
    "choice": _compare_choices,
    "words": _compare_words,
}
