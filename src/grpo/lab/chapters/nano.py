"""The model of the chapters: `nano`, loaded once, on one thread, for one request at a time."""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from grpo.config import Config
from grpo.config.leaf import shown
from grpo.config.schema import resolve
from grpo.errors import GrpoError
from grpo.lab.catalogue import RECORDINGS
from grpo.model.critic import Critic, make_critic
from grpo.model.load import load_policy
from grpo.model.policy import Policy
from grpo.rewards import Scorer
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.tasks import load_task
from grpo.tasks.arithmetic import Arithmetic
from grpo.types import Group, Problem

LONGEST = 24
"""In tokens: twice the length of an answer of `nano`."""
CRITIC = RECORDINGS / "nano-critic.safetensors"
"""A critic trained on rewards of the shipped `nano`, made by `scripts/make_critic.py`."""
_one_at_a_time = threading.RLock()


@dataclass(frozen=True, eq=False)
class Nano:
    policy: Policy
    engine: Engine
    task: Arithmetic
    scorer: Scorer
    """Of a trusted task: it has no processes to close."""


@lru_cache(maxsize=1)
def _loaded() -> Nano:
    import torch

    torch.set_num_threads(1)  # a trainer may need the cores
    policy = load_policy("nano")
    task = load_task("arithmetic:easy")
    assert isinstance(task, Arithmetic)
    return Nano(policy, Engine(policy, max_concurrent=1024), task, Scorer(task))


@contextmanager
def nano() -> Iterator[Nano]:
    """Locked while in use, because sampling changes the layout of its weights."""
    with _one_at_a_time:
        yield _loaded()


@contextmanager
def fresh_nano() -> Iterator[Nano]:
    """A copy that may be trained."""
    with nano() as loaded:
        policy = replace(loaded.policy, model=copy.deepcopy(loaded.policy.model))
        yield Nano(policy, Engine(policy, max_concurrent=1024), loaded.task, loaded.scorer)


@contextmanager
def nano_critic() -> Iterator[tuple[Nano, Critic]]:
    with nano() as loaded:
        yield loaded, _critic()


@lru_cache(maxsize=1)
def _critic() -> Critic:
    from safetensors.torch import load_file

    critic = make_critic(resolve(Config(model="nano", algorithm="ppo")), _loaded().policy)
    critic.restore(load_file(CRITIC))
    return critic


def sampled(problems: Sequence[Problem], group_size: int, *, seed: int, temperature: float = 1.0) -> list[Group]:
    """Groups of `nano` with their rewards."""
    with nano() as loaded:
        sampling = Sampling(seed=seed, temperature=temperature, max_new_tokens=LONGEST)
        return loaded.scorer.score(loaded.engine.sample(problems, group_size, sampling))


def sum_of_three(prompt: str) -> Problem:
    """
    >>> sum_of_three("37+85+46=").answer
    '168'
    """
    if not re.fullmatch(r"[1-9]\d\+[1-9]\d\+[1-9]\d=", prompt):
        raise GrpoError(f"prompt: expected a sum of three two-digit numbers such as 37+85+46=; got {shown(prompt)}")
    problem = Arithmetic("easy").recognise(prompt)
    assert problem is not None
    return problem
