"""Reward functions as people write them for TRL, with nothing in them about grpo. Used as they are."""

import asyncio
import re


def digits(completions, **kwargs):
    """Reward function that pays for every digit."""
    return [0.1 * sum(character.isdigit() for character in completion) for completion in completions]


def correct(prompts, completions, answer, **kwargs):
    rewards = []
    for prompt, completion, gold in zip(prompts, completions, answer):  # noqa: B905
        assert prompt.endswith("=")
        rewards.append(1.0 if re.sub(r"\(.*\)", "", completion).strip() == gold else 0.0)
    return rewards


def short(completion_ids, completions, trainer_state, log_extra=None, log_metric=None, **kwargs):
    lengths = [len(ids) for ids in completion_ids]
    log_extra("length", lengths)
    log_metric("mean_length", sum(lengths) / len(lengths))
    assert trainer_state.global_step >= 0
    return [-length / 100 if length < 1000 else None for length in lengths]


async def slow_to_answer(completions, **kwargs):
    async def one(completion):
        await asyncio.sleep(0)
        return float(len(completion))

    return await asyncio.gather(*map(one, completions))


def only_sums(prompts, completions, **kwargs):
    """None where it does not apply."""
    return [None if "*" in prompt else 1.0 for prompt in prompts]
