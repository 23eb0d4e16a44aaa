"""Trains the embedded models `calculator` and `guess` from random weights, on games that a teacher plays.

    python scripts/make_episode_models.py            # both, into src/grpo/model/hub; four minutes of one core
    python scripts/make_episode_models.py --only guess --into /tmp/models

The teacher of `calculator` first calls the tool in most games, so that the network learns how, and then in few, so that
the model usually answers at once. The teacher of `guess` guesses any number that is still possible. What the task
replies is read and not trained. Weights are stored in float16; they are the same on every run of one machine. Finally
the held-out accuracy is measured.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from make_tiny import Shape, initial_model, tokenizer

from grpo.cli.main import main
from grpo.config import Optimizer
from grpo.model.files import save_model
from grpo.model.load import load_policy
from grpo.model.optimizer import make_optimizer, take_step
from grpo.model.policy import Policy
from grpo.model.schedule import learning_rate
from grpo.tasks import load_task
from grpo.tasks.guess import NUMBERS
from grpo.training.sft import accumulate_gradients
from grpo.types import Completion, Group, Observation, Problem

BATCH = 64
WARMUP_STEPS = 50
TOKENS_AT_ONCE = 16384

Teacher = Callable[[Problem, Sequence[str], Sequence[str], random.Random], str]
"""Its next turn, from the problem, its turns and the replies so far, and a source of chance."""


@dataclass(frozen=True)
class Stage:
    steps: int
    lr: float
    direct_share: float = 0.0
    """Share of games in which the first turn is the gold answer."""


@dataclass(frozen=True)
class Student(Shape):
    words: tuple[str, ...]
    pattern: str
    teacher: Teacher
    stages: tuple[Stage, ...]


def calculate(problem: Problem, turns: Sequence[str], replies: Sequence[str], chance: random.Random) -> str:
    """Calls the calculator for each product, then for their sum, and repeats its last reply."""
    products = problem.prompt.rstrip("=").split("+")
    results = [reply.rstrip(";") for reply in replies]
    if len(results) < len(products):
        return f"[{products[len(results)]}]"
    return f"[{'+'.join(results)}]" if len(results) == 2 else results[-1]


def guess(problem: Problem, turns: Sequence[str], replies: Sequence[str], chance: random.Random) -> str:
    """Any number that the replies leave possible, each with the same probability."""
    possible = list(NUMBERS)
    for turn, reply in zip(turns, replies, strict=True):
        possible = [each for each in possible if (each < int(turn) if reply == "<" else each > int(turn))]
    return str(chance.choice(possible))


STUDENTS = {
    "calculator": Student(
        *("calculator", 112, 3, 4, 304),
        words=tuple("0123456789+*=[];"),
        pattern=".",
        teacher=calculate,
        stages=(Stage(700, 3e-3, 0.1), Stage(100, 3e-4, 0.7)),
    ),
    "guess": Student(
        *("guess", 64, 2, 2, 176),
        words=(*map(str, NUMBERS), *"<>-?"),
        pattern="[0-9]+|.",
        teacher=guess,
        stages=(Stage(1000, 3e-3),),
    ),
}


def make(student: Student, folder: Path) -> None:
    policy = initial_policy(student)
    first_step = 0
    for stage in student.stages:
        train(policy, student, stage, first_step)
        first_step += stage.steps
    policy.model.half()
    save_model(policy, folder)


def initial_policy(student: Student) -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        initial_model(student, len(student.words)).save_pretrained(folder)
        tokenizer(student.words, student.pattern).save_pretrained(folder)
        return load_policy(folder)


def train(policy: Policy, student: Student, stage: Stage, first_step: int) -> None:
    """Every step has new training problems; held-out problems never appear."""
    task = load_task(student.task)
    optimizer = make_optimizer(policy, Optimizer(weight_decay=0.01))
    warmup_steps = min(WARMUP_STEPS, stage.steps // 10)
    for step in range(stage.steps):
        problems = task.draw(first_step + step, BATCH, seed=0)
        chance = random.Random(f"teacher/{first_step + step}")
        games = [
            written(policy, problem, *play(task, student.teacher, problem, chance, stage.direct_share))
            for problem in problems
        ]
        loss, _ = accumulate_gradients(policy, games, TOKENS_AT_ONCE)
        lr = learning_rate(stage.lr, step, steps=stage.steps, warmup_steps=warmup_steps, schedule="cosine")
        take_step(policy, optimizer, lr=lr, grad_clip=1.0)
        if (step + 1) % 100 == 0:
            print(f"{student.task} step {first_step + step + 1}: loss {loss:.4f}", flush=True)


def play(
    task, teacher: Teacher, problem: Problem, chance: random.Random, direct_share: float
) -> tuple[list[str], list[str]]:
    """Turns of the teacher, and the task's replies."""
    turns: list[str] = []
    replies: list[str] = []
    direct = chance.random() < direct_share
    while len(replies) == len(turns):
        turns.append(problem.answer if direct else teacher(problem, turns, replies, chance))
        reply = task.reply(problem, turns)
        replies += [] if reply is None else [reply]
    return turns, replies


def written(policy: Policy, problem: Problem, turns: Sequence[str], replies: Sequence[str]) -> Group:
    """A game as an episode that the student might have sampled."""
    end = policy.tokenizer.eos_token_id
    encoded = [[*encode(policy, turn), end] for turn in turns]
    ends = np.cumsum([len(tokens) for tokens in encoded])
    observations = tuple(
        Observation(int(after), np.array(encode(policy, text)), text)
        for after, text in zip(ends, replies, strict=False)
    )
    tokens = np.concatenate(encoded)
    done = Completion(turns[-1], tokens, np.zeros(len(tokens), np.float32), "stop", tuple(turns), observations)
    return Group(problem, np.array(policy.prompt_tokens(problem)), (done,), policy_version=0)


def encode(policy: Policy, text: str) -> list[int]:
    return policy.tokenizer(text, add_special_tokens=False)["input_ids"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(STUDENTS))
    parser.add_argument("--into", type=Path, default=Path(__file__).parents[1] / "src/grpo/model/hub")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the sums of several threads differ from those of one
    for name in [arguments.only] if arguments.only else STUDENTS:
        make(STUDENTS[name], arguments.into / name)
        main(["eval", str(arguments.into / name), "--task", name])
