"""Games of the task `guess`: played by the shipped model with the engine that trains, and exact chances of winning."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch

from grpo.config import Config
from grpo.config.schema import resolve
from grpo.episodes.play import Episodes
from grpo.episodes.start import start_answers
from grpo.lab.chapters.query import Query, whole
from grpo.model.load import load_policy
from grpo.model.packing import pack
from grpo.model.policy import Policy, predicting_states
from grpo.rewards import Scorer
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.tasks.guess import GUESSES, NUMBERS, PROMPT, Guess
from grpo.training.credit import credit
from grpo.types import Completion, Group, Problem

GROUP_SIZE = 8
LONGEST = 24
"""In tokens: four guesses with their end tokens and three replies are eleven."""
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, eq=False)
class Player:
    """The shipped model `guess` and what plays with it; the task is trusted, so nothing has to be closed."""

    config: Config
    policy: Policy
    engine: Engine
    scorer: Scorer


@lru_cache(maxsize=1)
def _loaded() -> Player:
    torch.set_num_threads(1)  # a trainer may need the cores
    config = resolve(Config(task="guess"))
    policy, task = load_policy("guess"), Guess()
    answers = start_answers(config.episodes, config.scoring, task)
    assert answers is not None
    engine = Engine(policy, max_concurrent=1024, episodes=Episodes(config.episodes, answers, policy))
    return Player(config, policy, engine, Scorer(task))


@contextmanager
def player() -> Iterator[Player]:
    """Locked while in use, because sampling changes the layout of its weights."""
    with _one_at_a_time:
        yield _loaded()


def game(query: Query) -> dict[str, Any]:
    """Eight games with one hidden number, with their advantages, and one of them token by token."""
    hidden, seed = whole(query, "hidden", 11, 0, NUMBERS[-1]), whole(query, "seed", 1, 0, 9999)
    sample = whole(query, "sample", 0, 0, GROUP_SIZE - 1)
    problem = Problem(f"lab/{hidden}", PROMPT, str(hidden))
    with player() as loaded:
        sampling = Sampling(seed=seed, temperature=1.0, max_new_tokens=LONGEST)
        scored = loaded.scorer.score(loaded.engine.sample([problem], GROUP_SIZE, sampling))
        [group] = credit(scored, loaded.config)[0]
        chances_AV = next_tokens(loaded.policy, group, sample)
        done = group.completions[sample]
        return {
            "hidden": hidden,
            "prompt": PROMPT,
            "games": [_game(each) for each in group.completions],
            "sample": sample,
            "guesses": _guesses(loaded.policy, done, chances_AV),
            "tokens": _tokens(loaded.policy, done),
        }


def next_tokens(policy: Policy, group: Group, sample: int) -> torch.Tensor:
    """The probability of every token of the vocabulary at each place where the completion sampled one, [A, V]."""
    alone = Group(group.problem, group.prompt_tokens, (group.completions[sample],), group.policy_version)
    [batch] = pack([alone], token_budget=4096)
    with torch.no_grad():
        return policy.logits(predicting_states(policy, batch)).softmax(dim=-1)


def _game(done: Completion) -> dict[str, Any]:
    assert done.advantages is not None
    read = [{"who": "environment", "text": seen.text} for seen in done.observations]
    wrote = [{"who": "model", "text": text, "advantage": float(done.advantages.mean())} for text in done.turns]
    turns = [turn for pair in zip(wrote, read, strict=False) for turn in pair] + wrote[len(read) :]
    return {"turns": turns, "reward": done.reward, "advantage": float(done.advantages.mean())}


def _guesses(policy: Policy, done: Completion, chances_AV: torch.Tensor) -> list[dict[str, Any]]:
    """Each guess, the numbers that the replies had left possible, and the model's probability of every number."""
    numbers = [policy.tokenizer.convert_tokens_to_ids(str(number)) for number in NUMBERS]
    replies = [seen.text for seen in done.observations]
    low, high = NUMBERS[0], NUMBERS[-1]
    rows = []
    for place, (text, begin) in enumerate(zip(done.turns, [0, *done.turn_ends], strict=False)):
        chances = chances_AV[begin, numbers].tolist()
        reply = replies[place] if place < len(replies) else ""
        rows.append({"text": text, "low": low, "high": high, "chances": chances, "reply": reply})
        if reply:
            low, high = (low, min(high, int(text) - 1)) if reply == "<" else (max(low, int(text) + 1), high)
    return rows


def _tokens(policy: Policy, done: Completion) -> list[dict[str, Any]]:
    """The episode as it is trained: each token, and for those that were sampled the probability and the advantage."""
    assert done.advantages is not None
    sampled = iter(zip(done.logprobs, done.advantages, strict=True))
    end = policy.tokenizer.eos_token_id
    rows = []
    for token, own in zip(done.sequence.tolist(), done.sampled, strict=True):
        row: dict[str, Any] = {
            "text": "end" if token == end else policy.tokenizer.decode([token]),
            "sampled": bool(own),
        }
        if own:
            logprob, advantage = next(sampled)
            row |= {"probability": float(torch.tensor(logprob).exp()), "advantage": float(advantage)}
        rows.append(row)
    return rows


@lru_cache
def chance_of_best(numbers: int, guesses: int) -> Fraction:
    """Chance that the best player finds one of `numbers` equally likely numbers.

    >>> chance_of_best(15, 4), chance_of_best(15, 3)
    (Fraction(1, 1), Fraction(7, 15))
    """
    if not numbers or not guesses:
        return Fraction(0)
    return max(after_first(numbers, guesses, first, chance_of_best) for first in range(numbers))


@lru_cache
def chance_of_possible(numbers: int, guesses: int) -> Fraction:
    """The same for a player who guesses any number that is still possible, each with the same probability.

    >>> round(float(chance_of_possible(15, 4)), 3), chance_of_possible(3, 1)
    (0.604, Fraction(1, 3))
    """
    if not numbers or not guesses:
        return Fraction(0)
    each = [after_first(numbers, guesses, first, chance_of_possible) for first in range(numbers)]
    return sum(each, Fraction(0)) / numbers


def after_first(numbers: int, guesses: int, first: int, play: Any) -> Fraction:
    """Chance of winning after this first guess, from 0: it is right, or `play` goes on below or above it."""
    sides = sum(size * play(size, guesses - 1) for size in (first, numbers - 1 - first))
    return (1 + sides) / Fraction(numbers)


def strategies(query: Query) -> dict[str, Any]:
    """Chances of winning by first guess, if the game goes on with the best guesses, or with any that are possible."""
    guesses, count = whole(query, "guesses", GUESSES, 1, 6), len(NUMBERS)
    rows = [
        {
            "first": first,
            "best": float(after_first(count, guesses, first, chance_of_best)),
            "possible": float(after_first(count, guesses, first, chance_of_possible)),
        }
        for first in NUMBERS
    ]
    best, possible = (float(play(count, guesses)) for play in (chance_of_best, chance_of_possible))
    return {"guesses": guesses, "rows": rows, "best": best, "possible": possible}
