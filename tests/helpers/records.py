"""Run records made to order: what training would leave behind, with one thing planted in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from grpo.config import Config, SftConfig
from grpo.config.schema import as_dict
from grpo.config.sections import Loss
from grpo.core import group_advantages
from grpo.record.store import Run
from grpo.training.credit import credit
from grpo.types import Call, Completion, Group, Observation, Problem, Trace

Texts = Callable[[int, int, int], str]
Rewards = Callable[[int, int, int], dict[str, float | None]]


def text_of(step: int, group: int, sample: int) -> str:
    return f"answer {step} {group} {sample}"


def reward_of(step: int, group: int, sample: int) -> dict[str, float | None]:
    return {"correct": float((step + group + sample) % 2)}


def make_groups(
    step: int, *, groups: int = 4, size: int = 4, texts: Texts = text_of, rewards: Rewards = reward_of, length: int = 6
) -> list[Group]:
    """Scored and credited as the trainer does it."""
    made = []
    for index in range(groups):
        parts = [rewards(step, index, sample) for sample in range(size)]
        totals = [sum(value for value in part.values() if value is not None) for part in parts]
        [advantages] = group_advantages(torch.tensor([totals])).tolist()
        completions = tuple(
            Completion(
                text=texts(step, index, sample),
                tokens=np.arange(length) % 10,
                logprobs=np.full(length, -0.5, np.float32),
                finish="stop",
                parts=parts[sample],
                reward=float(totals[sample]),
                correct=totals[sample] >= 1,
                extra={texts(step, index, sample): [texts(step, index, sample)], "checked": 3},
                advantages=np.full(length, advantages[sample], np.float32),
                trace=Trace(np.full(length, -0.4, np.float32), np.full(length, 0.7, np.float32), float(groups * size)),
            )
            for sample in range(size)
        )
        problem = Problem(f"train/{step}/{index}", f"{step}+{index}=", "42", place=f"rows.jsonl:{index}")
        rendered = f"<|user|>{texts(step, index, 0)}\n<|assistant|>"
        made.append(Group(problem, np.array([1, 2, 3, 4]), completions, step, prompt_text=rendered))
    return made


METRICS = {
    "reward_mean": 0.5,
    "accuracy": 0.5,
    "zero_signal_groups": 0.0,
    "gradient_tokens": 1.0,
    "length_mean": 6.0,
    "truncated": 0.0,
    "entropy": 0.7,
    "kl": 0.01,
    "ratio_max": 1.1,
    "sampler_gap": 0.0,
    "skipped_updates": 0.0,
    "tokens": 96.0,
}


def make_run(
    folder: Path,
    name: str,
    *,
    steps: int = 30,
    metrics: Callable[[int], dict[str, float]] = lambda step: {},
    evals: Sequence[tuple[int, float]] = ((0, 0.4), (30, 0.5)),
    seed: int = 1,
    lr: float = 3e-5,
    algorithm: str = "grpo",
    status: str = "finished",
    world: dict[str, Any] | None = None,
    **groups: Any,
) -> None:
    config = Config(model="tiny", task="arithmetic", steps=steps, seed=seed, lr=lr, algorithm=algorithm, group_size=4)
    meta = {"world": world} if world else {}
    with Run.create(folder, name, kind="grpo", config=as_dict(config), meta=meta) as run:
        for step in range(steps):
            made = make_groups(step, **groups)
            run.record(step, made, METRICS | metrics(step), {"rollout": 0.2, "update": 0.5})
        for step, accuracy in evals:
            row = {"accuracy": accuracy, "low": accuracy - 0.05, "high": accuracy + 0.05}
            run.record_eval(step, row, make_groups(step, groups=2, size=1, **groups))
            run.record_probes(step, make_groups(0, groups=2, **groups))
        run.set_status(status)


CALL = Call("calculate", '{"expression": "47*86"}', "4042;")
HANGS = Call("search", '{"query": "6*7"}', "search: timed out after 1 s", "timeout")


def make_episode_run(folder: Path, name: str, text: str = "4042;", steps: int = 6) -> None:
    """Episodes of three turns, of 2, 1 and 3 tokens: the first reads three tokens of a reply, the second two of two
    calls. Every second one ends after its first turn, and earns nothing."""
    read = (
        Observation(2, np.array([4, 0, 4]), text),
        Observation(3, np.array([7, 8]), f"{CALL.answer}\n{HANGS.answer}", (CALL, HANGS)),
    )

    def episode(done: Completion) -> Completion:
        if not done.reward:
            return replace(done, turns=(done.text,))
        return replace(done, turns=("[47*86]", text, done.text), observations=read, steps=((2, 0.5),))

    def played(step: int, size: int = 4) -> list[Group]:
        groups = make_groups(step, size=size)
        return [replace(group, completions=tuple(map(episode, group.completions))) for group in groups]

    config = Config(model="tiny", task="arithmetic", steps=steps, group_size=4)
    with Run.create(folder, name, kind="grpo", config=as_dict(config)) as run:
        for step in range(steps):
            episodes = {"turns_mean": 2.0, "calls": 0.2 * step, "accuracy": step / 10, "observation_wait": 0.05}
            run.record(step, played(step), METRICS | episodes, {"rollout": 0.2, "update": 0.5})
        for step in (0, steps):
            row = {"accuracy": 0.5, "low": 0.4, "high": 0.6}
            run.record_eval(step, row, played(step, size=1))
            run.record_probes(step, played(0))
        run.set_status("finished")


def make_judged_run(
    folder: Path,
    name: str,
    rewards: Sequence[float | None],
    correct: Sequence[bool | None],
    *,
    finish: Literal["stop", "length"] = "stop",
    loss: Loss | None = None,
) -> None:
    """One step of one group: its rewards, and separately what the task judged; credited under `loss`."""
    [group] = make_groups(0, groups=1, size=len(rewards))
    completions = tuple(
        replace(done, reward=reward, correct=verdict, finish=finish)
        for done, reward, verdict in zip(group.completions, rewards, correct, strict=True)
    )
    config = Config(model="tiny", task="arithmetic", steps=1, group_size=len(rewards), loss=loss or Loss())
    [group], metrics = credit([replace(group, completions=completions)], config)
    with Run.create(folder, name, kind="grpo", config=as_dict(config)) as run:
        run.record(0, [group], METRICS | metrics, {"rollout": 0.2, "update": 0.5})
        run.set_status("finished")


def make_sft_run(folder: Path, name: str) -> None:
    config = as_dict(SftConfig(model="tiny", data="rows.jsonl", steps=30))
    with Run.create(folder, name, kind="sft", config=config) as run:
        for step in range(30):
            run.record(step, [], {"sft_loss": 1 / (1 + step), "tokens": 64.0}, {"update": 0.1})
        run.set_status("finished")


def make_empty_run(folder: Path, name: str) -> None:
    """Begun, and nothing recorded yet."""
    Run.create(folder, name, kind="grpo", config=as_dict(Config(model="tiny", task="arithmetic"))).close()


def make_failed_run(folder: Path, name: str, failure: str) -> None:
    """Failed before its first step."""
    make_empty_run(folder, name)
    with Run.open(folder, name) as run:
        run.set_meta("failure", failure)
        run.set_status("failed")
