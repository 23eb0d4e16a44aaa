"""Puzzles of the library reasoning-gym: `reasoning_gym:spell_backward`, `reasoning_gym:chain_sum,max_terms=3`.

Only reviewed generators are allowed: golds pass, junk fails, a seed gives the same problem in every process, and the
scorer never runs the model's text as code. Some of the library's generators break these rules.
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
from grpo.tasks.checkers.last_result import keep_last_result
from grpo.tasks.split import is_held_out
from grpo.types import Problem, chat

_REVIEWED = """
    ab advanced_geometry aiw base_conversion basic_arithmetic binary_alternation bitwise_arithmetic caesar_cipher
    calendar_arithmetic chain_sum circuit_logic color_cube_rotation complex_arithmetic count_bits count_primes
    course_schedule cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery family_relationships
    fraction_simplification gcd jugs kakurasu knights_knaves largest_island lcm leg_counting letter_counting
    letter_jumble mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid needle_haystack number_filtering
    number_format number_sequence palindrome_generation palindrome_partitioning path_star pool_matrix products
    rectangle_count rotate_matrix rotten_oranges self_reference sentence_reordering shortest_path simple_equations
    simple_geometry spell_backward string_manipulation string_splitting string_synthesis survo syllogism time_intervals
    tower_of_hanoi tsumego word_sequence_reversal word_sorting"""
ALLOWED = tuple(_REVIEWED.split())
_WHY_NOT = {
    "its scorer may run a completion as code": "binary_matrix spiral_matrix n_queens string_insertion countdown "
    "puzzle24 polynomial_multiplication simple_integration intermediate_integration codeio",
    "its problems differ between processes": "isomorphic_strings ransom_note word_ladder",
    "it rewards junk": "game_of_life_halting coin_flip polynomial_equations power_function",
    "it accepts numbers that are off by one": "number_sorting",
    "it stores no gold answer": "boxnet graph_color propositional_logic rubiks_cube rush_hour",
    "its scorer fails on junk": "game_of_life prime_factorization",
}
REFUSED = {name: why for why, names in _WHY_NOT.items() for name in names.split()}
"""Generator -> reason. Generators in neither table are too slow, or were not reviewed."""
ITEMS = 2**62
STRIDE = 2**20
HELDOUT_COUNT = 500
LONGEST = 10_000
"""Characters of an answer."""


class ReasoningGym:
    """Rewards only the full score, or with `,partial` in the name part scores too. `key=value` sets the generator."""

    def __init__(self, variant: str = ""):
        generator, *settings = variant.split(",")
        if generator not in ALLOWED:
            raise GrpoError(f"field task: {_refusal(generator)}")
        self.name, self.generator = f"reasoning_gym:{variant}", generator
        self.partial = "partial" in settings
        self.settings = json.dumps(dict(_setting(each) for each in settings if each != "partial"))
        _dataset(generator, self.settings, 0)

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        # The library's problem i of seed s is problem 0 of seed s + i: seeds must be far apart.
        spread = int.from_bytes(hashlib.sha256(f"train/{seed}".encode()).digest()[:4], "big")
        return [*islice(self._stream(spread, step * STRIDE, f"train/{step}", heldout=False), count)]

    def heldout(self) -> list[Problem]:
        distinct = {problem.prompt: problem for problem in islice(self._stream(0, 0, "heldout", True), HELDOUT_COUNT)}
        return list(distinct.values())

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        return {"correct": self._scored(problem, text) if self.partial else float(self.is_correct(problem, text))}

    def is_correct(self, problem: Problem, text: str) -> bool:
        return self._scored(problem, text) >= 1.0

    def why(self, problem: Problem, text: str) -> tuple[str, str]:
        """(answer found, the generator's score)."""
        return answer_in(text), f"the generator's scorer gives {self._scored(problem, text):.2g}"

    @keep_last_result
    def _scored(self, problem: Problem, text: str) -> float:
        answer = answer_in(text)
        if not answer or len(answer) > LONGEST:
            return 0.0
        return float(_dataset(self.generator, self.settings, 0).score_answer(answer, dict(problem.columns)))

    def _stream(self, seed: int, start: int, prefix: str, heldout: bool) -> Iterator[Problem]:
        """An endless stream of problems, held out or not."""
        dataset, number = _dataset(self.generator, self.settings, seed), count()
        for index in count(start):
            item = dataset[index]
            question = item["question"]
            if is_held_out(question) == heldout:
                yield Problem(f"{prefix}/{next(number)}", question, str(item["answer"]), chat(question), item)


def answer_in(text: str) -> str:
    """The content of the last answer tag or box; without one, the whole text if short, else its last line."""
    marked = [candidate for form, candidate in explicit(text[-20_000:]) if form in ("tag", "box")]
    if marked:
        return marked[0]
    whole = text.strip()
    return whole if len(whole) <= LONGEST and "\n\n" not in whole else (whole.splitlines() or [""])[-1].strip()


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise GrpoError(f"field task: {text!r} is not a valid setting of a generator; write name=value, or partial")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _refusal(name: str) -> str:
    if not name:
        return f"reasoning_gym needs a generator, such as reasoning_gym:spell_backward; allowed: {', '.join(ALLOWED)}"
    if name in REFUSED:
        return f"reasoning_gym:{name} is not allowed: {REFUSED[name]}"
    near = difflib.get_close_matches(name, ALLOWED, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"allowed: {', '.join(ALLOWED)}"
    return f"reasoning_gym has no generator {name!r}; {hint}"


@lru_cache(maxsize=8)
def _dataset(name: str, settings: str, seed: int) -> Any:
    """Built on first use in each process: the task itself travels to workers without it."""
    try:
        import reasoning_gym
    except ImportError:
        raise GrpoError("field task: reasoning_gym needs its library; pip install 'grpo-lab[tasks]'") from None
    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=ITEMS, **json.loads(settings))
    except (TypeError, ValueError, AssertionError) as error:  # border: the library refuses its settings
        raise GrpoError(f"field task: reasoning_gym:{name} does not take {settings}: {error}") from None
