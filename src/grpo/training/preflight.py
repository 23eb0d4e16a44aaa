"""Checks before the first step: refuses a run that would fail later, and lists assumptions."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.filesize import decimal as readable

from grpo.config import Config
from grpo.distributed.world import ALONE, World
from grpo.episodes.start import begun
from grpo.errors import GrpoError
from grpo.model.oom_retry import tokens_at_once
from grpo.model.packing import pack
from grpo.model.plan import Work, needs
from grpo.model.policy import Policy, logprobs
from grpo.model.positions import limit_in_words
from grpo.model.prompt import template_warnings
from grpo.rewards import Scorer, error_line
from grpo.rollout.builtin import Engine
from grpo.rollout.expected import expect
from grpo.rollout.prompts import refuse_unreadable
from grpo.rollout.protocol import Episodes, Sampling
from grpo.rollout.schedule import Room, Schedule
from grpo.tasks.protocol import HasProblems, assumptions_of, draw_problems
from grpo.training.credit import check_weights
from grpo.types import Group, Problem

MAX_GAP = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}
"""Largest mean |sampler logp − trainer logp| at which sampler and trainer count as the same policy."""
BYTES_PER_COMPLETION = 400
"""Approximate size of one completion in the record, without its text and tokens."""
BYTES_PER_TOKEN = 28
"""Of a completion whose tokens are recorded: the token, and up to six values of it."""
BYTES_PER_TURN = 100
"""Of a turn or an observation of an episode, without its texts."""


def preflight(
    config: Config,
    scorer: Scorer,
    eval_scorer: Scorer,
    policy: Policy,
    engine: Engine,
    world: World = ALONE,
) -> list[str]:
    """Assumptions of the run, one line each. Raises GrpoError when the run would fail."""
    task, heldout = scorer.task, scorer.task.heldout()
    if not heldout:
        raise GrpoError(f"task {task.name}: has no held-out problems, so accuracy cannot be measured; add some")
    problems = [*heldout[: config.evaluation.problems], *draw_problems(task, 0, config.prompts_per_step, config.seed)]
    # A dataset is checked as a whole, so that an unusable prompt is found now and not hours later.
    every = task.problems() if isinstance(task, HasProblems) else problems
    scorer.ready(every)
    if not scorer.rewards_task:  # a task names its parts when it scores
        check_weights([*scorer.brought, *(spec.part for spec in scorer.specs)], config)
    check_golds(scorer, problems, world)
    if eval_scorer is not scorer:
        eval_scorer.ready(heldout)
        check_golds(eval_scorer, heldout[: config.evaluation.problems], world)
    drawn = problems[-2:]
    if engine.episodes:  # an environment adds to the prompts, or makes them
        first = problems[-config.prompts_per_step :]
        found = world.gather(begun(engine.episodes, world.mine(first), config.max_new_tokens))
        problems = [problem for problem in found if problem]
        every = [*filter(lambda problem: problem.prompt, every), *problems]
    check_vocabulary(policy)
    longest = check_lengths(policy, every, config.max_new_tokens)
    played = trial(config, policy, drawn, engine.episodes)
    check_agreement(config, policy, played)
    work = replace(Work.of(config, longest), heldout=min(len(heldout), config.evaluation.problems)).share(world.size)
    smaller_cache = expect(engine, work)
    if engine.cache_blocks:  # refused now, and not when the prompt is drawn
        Schedule([longest], 1, config.max_new_tokens, Room(engine.cache_blocks, rows=1))
    assumptions = [
        *smaller_cache,
        *model_assumptions(policy, problems),
        *assumptions_of(task),
        *reward_assumptions(scorer, played),
    ]
    assumptions += dict.fromkeys((*scorer.assumptions, *eval_scorer.assumptions))
    if needs(config.loss, config.critic).critic and config.steps <= config.critic.warmup_steps:
        assumptions.append(
            f"critic.warmup_steps is {config.critic.warmup_steps} and steps {config.steps}: only the critic is "
            "trained, never the policy"
        )
    if len(heldout) < config.evaluation.problems:
        assumptions.append(
            f"evaluation.problems is {config.evaluation.problems}; {task.name} has only {len(heldout)}, all are used"
        )
    return assumptions


def check_golds(scorer: Scorer, problems: list[Problem], world: World) -> None:
    """Every gold answer must be correct and earn a reward from the task's checker. Other rewards are not checked. Each
    rank checks its part: it has its part of the workers."""
    if not scorer.checks_golds:
        return
    scored = world.gather(scorer.score_texts([(problem, problem.answer) for problem in world.mine(problems)]))
    wrong = [(p, done) for p, done in zip(problems, scored, strict=True) if not (done.correct and done.reward)]
    if wrong:
        first, done = wrong[0]
        raise GrpoError(
            f"task {scorer.task.name}: {len(wrong)} of {len(problems)} gold answers do not pass their own check; the "
            f"first is problem {first.label}, answer {first.answer!r}{f' ({error_line(done.why)})' if done.why else ''}"
        )


def check_vocabulary(policy: Policy) -> None:
    rows, words = policy.model.get_input_embeddings().weight.shape[0], len(policy.tokenizer)
    if words > rows:
        raise GrpoError(
            f"field model: the tokenizer of {policy.name} has {words} tokens and the model {rows} embeddings; they do "
            "not belong together, use the tokenizer the model was trained with"
        )


def check_lengths(policy: Policy, problems: list[Problem], max_new_tokens: int) -> int:
    """Tokens of the longest prompt; 1 where there are none, because no environment could begin."""
    lengths = []
    for problem in problems:
        tokens = policy.prompt_tokens(problem)
        refuse_unreadable(policy, problem, tokens)
        lengths.append(len(tokens))
    limit = policy.positions
    if not limit:
        return max(lengths, default=1)
    room = limit - max_new_tokens
    long = [(problem, length) for problem, length in zip(problems, lengths, strict=True) if length > room]
    if long:
        first, length = long[0]
        # Only rows, which have a place, can be left out.
        leave_out = f", or leave longer prompts out (--dataset.max-prompt-tokens {room})"
        lower = "shorten the prompts" if max(lengths) >= limit else "lower max_new_tokens"
        raise GrpoError(
            f"field max_new_tokens: {len(long)} prompts leave no room for {max_new_tokens} new tokens in "
            f"{limit_in_words(policy.model.config, policy.name)}; the first is problem {first.label} with {length} "
            f"tokens; {lower}{leave_out if room > 0 and first.place else ''}"
        )
    return max(lengths, default=1)


def check_disk(config: Config, policy: Policy, run_path: Path | None, episodes: bool = False) -> None:
    """`run_path` is the folder of a resumed run; the disk space it takes counts as available."""
    folder = Path(config.system.runs).absolute()
    while not folder.exists():
        folder = folder.parent
    weights = sum(weight.nbytes for _, weight in policy.trainable())
    # A checkpoint has the weights and Adam's two moments, the same for a critic, and a reference that is refreshed. On
    # the disk are the newest `keep`, the best, and the one being written.
    copies = 3 * (1 + needs(config.loss, config.critic).critic) + (config.loss.refresh > 0)
    recorded = recorded_bytes(config, len(policy.tokenizer), episodes)
    needed = copies * weights * (config.checkpoints.keep + 2) + recorded
    if run_path is not None:
        needed -= sum(path.stat().st_size for path in run_path.rglob("*") if path.is_file())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise GrpoError(
            f"field system.runs: {folder} has {readable(free)} free and the run needs about {readable(needed)}; "
            "free space, choose another folder, or keep fewer checkpoints (--checkpoints.keep)"
        )


def recorded_bytes(config: Config, vocabulary: int, episodes: bool = False) -> int:
    """Most bytes of a run's completions in its record, with texts of full length.

    >>> recorded_bytes(Config(steps=10, prompts_per_step=4, group_size=8, max_new_tokens=1000), 50_000)
    3648000
    >>> recorded_bytes(Config(steps=10, prompts_per_step=4, group_size=8, max_new_tokens=1000), 50_000, episodes=True)
    6720000
    """
    characters = 4 if vocabulary > 1000 else 1  # of a token
    completion = BYTES_PER_COMPLETION + characters * config.max_new_tokens
    if episodes:  # its turns and observations; tool calls hold their answers again
        completion += 2 * config.episodes.max_turns * BYTES_PER_TURN + 2 * characters * config.max_new_tokens
    traced = config.system.token_groups * config.group_size * BYTES_PER_TOKEN * config.max_new_tokens
    return config.steps * (config.prompts_per_step * config.group_size * completion + traced)


def trial(config: Config, policy: Policy, problems: list[Problem], episodes: Episodes | None) -> list[Group]:
    """A few completions. Episodes are played, with room for an observation; refuses a run in which each of them goes
    wrong."""
    sampling = Sampling(
        seed=config.seed,
        temperature=config.temperature,
        max_new_tokens=min(16 + (config.episodes.max_observation_tokens if episodes else 0), config.max_new_tokens),
        purpose="preflight",
    )
    groups = Engine(policy, episodes=episodes).sample(problems, 2, sampling)
    played = [done for group in groups for done in group.completions]
    if all(done.fault for done in played):
        first = played[0]
        raise GrpoError(
            f"episodes: each of {len(played)} trial episodes went wrong, the first with {first.fault}: "
            f"{error_line(first.why)}; fix it"
        )
    return groups


def reward_assumptions(scorer: Scorer, played: Sequence[Group]) -> list[str]:
    """Where environments alone give rewards, and none of the trial episodes got one."""
    episodes = [done for group in played for done in group.completions]
    if scorer.environment is None or scorer.specs or any(done.parts for done in episodes):
        return []
    return [
        f"{', '.join(scorer.environment.parts)} gave no reward to any of {len(episodes)} trial episodes, and an "
        "episode without one earns 0; if it never gives any, name a reward (--reward, such as task)"
    ]


def check_agreement(config: Config, policy: Policy, groups: Sequence[Group]) -> None:
    """Compare the log-probabilities of sampler and trainer on a few completions: a gap would falsify every ratio."""
    gaps = []
    with torch.no_grad():
        for batch in pack(
            groups, tokens_at_once(policy, config.system.token_budget), policy.device, padded=policy.padded
        ):
            logp_NL, _ = logprobs(policy, batch, config.temperature)
            gaps.append((logp_NL - batch.sampler_logp_NL)[batch.mask_NL].abs())
    gap = float(torch.cat(gaps).mean())
    if not gap <= MAX_GAP[policy.compute_dtype]:
        raise GrpoError(
            f"field model: sampler and trainer disagree on {policy.name} (mean |Δ log-probability| {gap:.2g}, allowed "
            f"{MAX_GAP[policy.compute_dtype]:.2g}); its attention or its output layer is one that grpo does not know; "
            "use another model"
        )


def model_assumptions(policy: Policy, problems: list[Problem]) -> list[str]:
    assumptions = []
    if policy.padded:
        kind = policy.model.config.model_type
        assumptions.append(
            f"{policy.name} ({kind}) has its own attention: it is sampled with transformers' generate and trained with "
            "one prompt per completion, which is slower"
        )
    if policy.gradient_checkpointing and policy.fused_in_training is None:
        assumptions.append(
            f"system.gradient_checkpointing has no effect for {policy.name} here: it needs a model of Llama blocks "
            "on a GPU in 16 bits"
        )
    # Rows of padded models are filled with token 0 and masked, so they need no pad token either.
    if policy.tokenizer.pad_token_id is None and not policy.padded:
        assumptions.append(f"{policy.name} has no pad token; none is needed, because nothing is padded")
    if getattr(policy.tokenizer, "chat_template", None) and not all(problem.messages for problem in problems):
        assumptions.append(f"{policy.name} has a chat template; prompts that are plain text are used as they are")
    assumptions += template_warnings(policy.tokenizer, policy.chat_template_kwargs, policy.name)
    return assumptions
