"""Puzzles out of the library reasoning-gym: `reasoning_gym:spell_backward`, `reasoning_gym:chain_sum,max_terms=3`.

Only generators that were looked at are let in: their golds pass, junk does not, the same seed gives the same problem in
every process, and their scorers run no text of the model as code. Some of the library's do the contrary.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import count, islice
from typing import Any

from grpo.errors import GrpoError
from grpo.tasks.checkers.answers import explicit
from grpo.tasks.split import is_held_out
from grpo.types import Problem, chat

_LOOKED_AT = """
    ab advanced_geometry aiw base_conversion basic_arithmetic binary_alternation bitwise_arithmetic caesar_cipher
    calendar_arithmetic chain_sum circuit_logic color_cube_rotation complex_arithmetic count_bits count_primes
    course_schedule cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery family_relationships
    fraction_simplification gcd jugs kakurasu knights_knaves largest_island lcm leg_counting letter_counting
    letter_jumble mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid needle_haystack number_filtering
    number_format number_sequence palindrome_generation palindrome_partitioning path_star pool_matrix products
    rectangle_count rotate_matrix rotten_oranges self_reference sentence_reordering shortest_path simple_equations
    simple_geometry spell_backward string_manipulation string_splitting string_synthesis survo syllogism time_intervals
    tower_of_hanoi tsumego word_sequence_reversal word_sorting"""
ALLOWED = tuple(_LOOKED_AT.split())
_WHY_NOT = {
    "its scorer may run a completion as code": "binary_matrix spiral_matrix n_queens string_insertion countdown "
    "puzzle24 polynomial_multiplication simple_integration intermediate_integration codeio",
    "its problems differ between processes": "isomorphic_strings ransom_note word_ladder",
    "it pays for junk": "game_of_life_halting coin_flip polynomial_equations power_function",
    "it accepts numbers that are off by one": "number_sorting",
    "it stores no gold answer": "boxnet graph_color propositional_logic rubiks_cube rush_hour",
    "its scorer fails on junk": "game_of_life prime_factorization",
}
REFUSED = {name: why for why, names in _WHY_NOT.items() for name in names.split()}
"""Why; what is in neither table is too slow, or was not looked at."""
ITEMS = 2**62
STRIDE = 2**20
HELDOUT_COUNT = 500
LONGEST = 10_000


class ReasoningGym:
    """Pays for full marks only, unless the name ends in `,partial`. `key=value` after a comma sets the generator."""

    def __init__(self, variant: str = ""):
        generator, *settings = variant.split(",")
        if generator not in ALLOWED:
            raise GrpoError(f"field task: {_refusal(generator)}")
        self.name, self.generator = f"reasoning_gym:{variant}", generator
        self.partial = "partial" in settings
        self.settings = json.dumps(dict(_setting(each) for each in settings if each != "partial"))
        _dataset(generator, self.settings, 0)

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        # The library's problem i of seed s is problem 0 of seed s + i: seeds must lie far apart.
        spread = int.from_bytes(hashlib.sha256(f"train/{seed}".encode()).digest()[:4], "big")
        return [*islice(self._stream(spread, step * STRIDE, f"train/{step}", heldout=False), count)]

    def heldout(self) -> list[Problem]:
        distinct = {problem.prompt: problem for problem in islice(self._stream(0, 0, "heldout", True), HELDOUT_COUNT)}
        return list(distinct.values())

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        earned = self._scored(problem, said(text))
        return {"correct": earned if self.partial else float(earned >= 1.0)}

    def why(self, problem: Problem, text: str) -> tuple[str, str]:
        return said(text), f"the generator's scorer gives {self._scored(problem, said(text)):.2g}"

    def _scored(self, problem: Problem, answer: str) -> float:
        if not answer or len(answer) > LONGEST:
            return 0.0
        return float(_dataset(self.generator, self.settings, 0).score_answer(answer, dict(problem.columns)))

    def _stream(self, seed: int, start: int, prefix: str, heldout: bool) -> Iterator[Problem]:
        """Endless, of one side."""
        dataset, number = _dataset(self.generator, self.settings, seed), count()
        for index in count(start):
            item = dataset[index]
            question = item["question"]
            if is_held_out(question) == heldout:
                yield Problem(f"{prefix}/{next(number)}", question, str(item["answer"]), chat(question), item)


def said(text: str) -> str:
    """What stands in an answer tag, box or sentence; else the last line, which may be all there is."""
    marked = [candidate for form, candidate in explicit(text[-20_000:]) if form in ("tag", "box")]
    if marked:
        return marked[0]
    whole = text.strip()
    return whole if len(whole) <= LONGEST and "\n\n" not in whole else (whole.splitlines() or [""])[-1].strip()


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise GrpoError(f"field task: {text!r} is no setting of a generator; write name=value, or partial")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _refusal(name: str) -> str:
    if not name:
        return f"name a generator, such as reasoning_gym:spell_backward; there are {', '.join(ALLOWED)}"
    if name in REFUSED:
        return f"reasoning_gym:{name} is not let in: {REFUSED[name]}"
    near = difflib.get_close_matches(name, ALLOWED, n=3)
    return f"no generator {name!r} of reasoning_gym; {'near are' if near else 'there are'} {', '.join(near or ALLOWED)}"


@lru_cache(maxsize=8)
def _dataset(name: str, settings: str, seed: int) -> Any:
    """Made where it is needed, so that a task can be sent to another process."""
    try:
        import reasoning_gym
    except ImportError:
        raise GrpoError("field task: reasoning_gym needs its library; pip install 'grpo-lab[tasks]'") from None
    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=ITEMS, **json.loads(settings))
    except (TypeError, ValueError, AssertionError) as error:  # a border: the library's checks of its settings
        raise GrpoError(f"field task: reasoning_gym:{name} does not take {settings}: {error}") from None
