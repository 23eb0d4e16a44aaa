"""Credit per token: a completion's tokens with every kind of credit, and their true gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np
import torch

from grpo.config import Config
from grpo.config.presets import PRESETS
from grpo.config.schema import resolve
from grpo.core import gae, group_advantages, process_advantages
from grpo.errors import GrpoError
from grpo.lab.chapters.nano import LONGEST, Nano, nano, nano_critic, sampled, sum_of_three
from grpo.lab.chapters.query import Query, number, text, whole
from grpo.rewards.steps import score_steps
from grpo.rollout.protocol import Sampling
from grpo.training.annotations import annotate
from grpo.training.credit import credit
from grpo.types import Completion, Group, Problem

SIZE = 8
TRIES = 64
"""Continuations sampled from each position to measure its true value."""


def tokens(query: Query) -> dict[str, Any]:
    """One completion of a group, token by token: GRPO's advantage, a critic's value and GAE, and the true gain."""
    prompt, seed = text(query, "prompt", "37+85+46="), whole(query, "seed", 1, 0, 9999)
    gamma, lam = number(query, "gamma", 1.0, 0.5, 1.0), number(query, "lam", 0.95, 0.0, 1.0)
    group = valued_group(prompt, seed)
    chosen = whole(query, "sample", example_of(group), 0, SIZE - 1)
    done = group.completions[chosen]
    assert done.advantages is not None
    assert done.values is not None
    rewards_1L, values_1L = torch.zeros(1, len(done)), torch.as_tensor(done.values)[None]
    rewards_1L[0, -1] = done.reward or 0.0
    gae_1L, _ = gae(rewards_1L, values_1L, gamma, lam)
    surprise_1L, _ = gae(rewards_1L, values_1L, gamma, 0.0)
    true_values = true_value(prompt, seed, chosen)
    return {
        "prompt": group.problem.prompt,
        "answer": group.problem.answer,
        "sample": chosen,
        "texts": [{"text": one.text, "reward": one.reward} for one in group.completions],
        "reward": done.reward,
        "tries": TRIES,
        "tokens": [
            {
                "text": token,
                "grpo": float(done.advantages[place]),
                "value": float(done.values[place]),
                "surprise": float(surprise_1L[0, place]),
                "gae": float(gae_1L[0, place]),
                "true_value": true_values[place],
                "true_gain": true_values[place + 1] - true_values[place],
            }
            for place, token in enumerate(pieces(done))
        ],
    }


@lru_cache(maxsize=64)
def valued_group(prompt: str, seed: int) -> Group:
    """A group of `nano` with GRPO's advantages, process rewards, and the critic's values."""
    config = resolve(Config(model="nano", group_size=SIZE, max_new_tokens=LONGEST))
    groups = sampled([sum_of_three(prompt)], SIZE, seed=seed)
    groups, _ = credit(groups, config)
    with nano_critic() as (loaded, critic):
        groups = score_steps(loaded.task, groups, loaded.policy.tokenizer.batch_decode)
        [group] = annotate(
            groups,
            critic.values,
            "values",
            token_budget=config.system.token_budget,
            policy=loaded.policy,
        )
    return group


@lru_cache(maxsize=256)
def true_value(prompt: str, seed: int, sample: int) -> list[float]:
    """The probability of a right answer before every token and after the last: the share of right answers among
    `TRIES` continuations. A token's true gain is the difference of two neighbours."""
    group = valued_group(prompt, seed)
    done = group.completions[sample]
    written = ["".join(pieces(done)[:place]) for place in range(len(done))]
    with nano() as loaded:
        values = [fmean(_score_continuations(loaded, group.problem, before)) for before in written]
    return [*values, done.reward or 0.0]


def _score_continuations(loaded: Nano, problem: Problem, written: str) -> list[float]:
    prefix = Problem(f"{problem.id}/{written}", problem.prompt + written, problem.answer)
    sampling = Sampling(seed=2, temperature=1.0, max_new_tokens=LONGEST)
    [group] = loaded.engine.sample([prefix], TRIES, sampling)
    return [float(loaded.task.score(problem, written + done.text)["correct"] or 0.0) for done in group.completions]


def example_of(group: Group) -> int:
    """A right completion with working, if there is one: it has the most tokens."""
    return max(range(SIZE), key=lambda place: (group.completions[place].reward or 0.0, len(group.completions[place])))


def pieces(done: Completion) -> list[str]:
    """One per token; the embedded models' tokens are characters."""
    return [*done.text, *["end"] * (len(done) - len(done.text))]


def steps(query: Query) -> dict[str, Any]:
    """One group with outcome rewards and with process rewards; any step's reward can be flipped."""
    prompt, seed = text(query, "prompt", "37+85+46="), whole(query, "seed", 1, 0, 9999)
    group = valued_group(prompt, seed)
    flipped = set(filter(None, text(query, "turned", "", 200).split(",")))
    marks = [[(end, reward) for end, reward in done.steps] for done in group.completions]
    names = {f"{i}.{j}" for i, done in enumerate(marks) for j in range(len(done))}
    if unknown := flipped - names:
        raise GrpoError(f"turned: no step {sorted(unknown)[0][:20]!r}; steps are named as in 0.1")
    marks = [
        [(end, 1 - reward if f"{i}.{j}" in flipped else reward) for j, (end, reward) in enumerate(done)]
        for i, done in enumerate(marks)
    ]
    # The last step is the answer, which the outcome reward scores.
    rewards_1G = torch.tensor([[done[-1][1] for done in marks]])
    by_outcome = group_advantages(rewards_1G)[0].tolist()
    by_step = process_advantages(
        [[reward for _, reward in done] for done in marks],
        [[end for end, _ in done] for done in marks],
        [len(done) for done in group.completions],
    )
    return {
        "prompt": group.problem.prompt,
        "answer": group.problem.answer,
        "completions": [
            {
                "text": done.text,
                "reward": reward,
                "outcome": outcome,
                "tokens": pieces(done),
                "process": advantages.tolist(),
                "steps": [
                    {"id": f"{i}.{j}", "begin": begin, "end": end, "reward": earned, "turned": f"{i}.{j}" in flipped}
                    for j, ((end, earned), begin) in enumerate(
                        zip(marked, [0, *(end + 1 for end, _ in marked)], strict=False)
                    )
                ],
            }
            for i, (done, reward, outcome, advantages, marked) in enumerate(
                zip(group.completions, rewards_1G[0].tolist(), by_outcome, by_step, marks, strict=True)
            )
        ],
    }


def presets(query: Query) -> dict[str, Any]:
    """The same group with every preset: the number of distinct advantages among one completion's tokens."""
    prompt, seed = text(query, "prompt", "37+85+46="), whole(query, "seed", 1, 0, 9999)
    group = valued_group(prompt, seed)
    rows = [_credited(group, name, name) for name in PRESETS]
    return {"prompt": prompt, "rows": [*rows, _credited(group, "grpo", "grpo with process rewards", "process")]}


def _credited(group: Group, preset: str, label: str, kind: Any = "outcome") -> dict[str, Any]:
    # Without the KL penalty, which some presets subtract from the reward and which is not compared here.
    loss = replace(PRESETS[preset].settings, beta=0.0, credit=kind)
    config = resolve(Config(model="nano", algorithm=preset, loss=loss, group_size=SIZE, max_new_tokens=LONGEST))
    [credited], _ = credit([group], config)
    chosen = credited.completions[example_of(group)]
    assert chosen.advantages is not None
    return {
        "label": label,
        "paper": PRESETS[preset].paper,
        "distinct": max(_distinct(done.advantages) for done in credited.completions if done.advantages is not None),
        "advantages": [float(advantage) for advantage in chosen.advantages],
        "tokens": pieces(chosen),
    }


def _distinct(advantages: Sequence[float] | np.ndarray) -> int:
    return len({round(float(advantage), 6) for advantage in advantages})
