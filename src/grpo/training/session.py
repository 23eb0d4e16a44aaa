"""A GRPO run while it trains: its task, networks and engine, in addition to the record and checkpoints that
every run has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch

from grpo.config import Config
from grpo.config.rules import unused_in_episodes, warnings
from grpo.config.schema import resolve
from grpo.distributed.world import ALONE, World
from grpo.episodes.answers import Answers
from grpo.episodes.environment_replies import EnvironmentReplies
from grpo.episodes.play import Episodes
from grpo.episodes.start import chosen_replier, start_answers
from grpo.errors import GrpoError
from grpo.model.critic import Critic
from grpo.model.device import pick_device, prepare_machine
from grpo.model.optimizer import Named, lr_warnings
from grpo.model.policy import Policy
from grpo.record.best import check_best
from grpo.record.events import Callback, Silent
from grpo.record.loggers import with_loggers
from grpo.rewards import Pending, Scorer
from grpo.rewards.pool.workers import refuse_while_scoring
from grpo.rewards.share import share_of_rank
from grpo.rewards.steps import check_steps, reward_turns, score_steps
from grpo.rewards.trainer_state import TrainerState
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.tasks import Task
from grpo.tasks.protocol import draw_problems, training_rows
from grpo.training.credit import check_weights
from grpo.training.evaluation import evaluate
from grpo.training.fingerprint import fingerprints, problems_fingerprint
from grpo.training.inputs import Inputs
from grpo.training.memory_check import check_memory
from grpo.training.networks import Networks, load_networks
from grpo.training.open_run import OpenRun, create_run, reopen_run
from grpo.training.preflight import check_disk, preflight
from grpo.training.resume import Kept, check_same_inputs
from grpo.training.training_run import TrainingRun
from grpo.types import Group, Problem


@dataclass(eq=False, kw_only=True)
class Session(TrainingRun):
    config: Config
    task: Task
    scorer: Scorer
    eval_scorer: Scorer
    """Scores held-out completions: `scorer`, or one with the rewards of evaluation.reward."""
    answers: Answers | None
    """Answers completions between their turns; None: they have one turn."""
    engine: Engine
    reference: Policy | None
    critic: Critic | None

    @classmethod
    def start(
        cls,
        config: Config,
        callbacks: Sequence[Callback] = (),
        inputs: Inputs | None = None,
        world: World = ALONE,
    ) -> Self:
        """Start the run, or resume it from its last complete checkpoint. Rank 0 decides which.

        Everything is validated before the run is created. A failure in between releases what was taken.
        """
        refuse_while_scoring()
        config, inputs = resolve(config), inputs or Inputs()
        listening = with_loggers(callbacks, config.system.log) if world.first else with_loggers([Silent()], "")
        with ExitStack() as undo:
            replier = chosen_replier(config.episodes, inputs.tools, inputs.env)
            task = inputs.load_task(config, replier.schemas if replier else ())
            # Its workers import reward functions while the model is loaded here.
            device = pick_device(config.system)
            state = TrainerState.of(config, training_rows(task), world)
            scoring = share_of_rank(config.scoring, world)
            environment = replier if isinstance(replier, EnvironmentReplies) else None
            make = partial(Scorer, task, scoring=scoring, device=device, state=state, environment=environment)
            scorer = eval_scorer = undo.enter_context(make(config.reward, functions=inputs.functions))
            if rewards := config.evaluation.reward:
                eval_scorer = undo.enter_context(make(rewards, functions=inputs.eval_functions, evaluation=True))
            for each in (scorer, eval_scorer):
                each.check_requirements()
            if environment and not scorer.specs:
                environment.kinds.check_rewards()
            if answers := start_answers(config.episodes, scoring, task, replier):
                undo.enter_context(answers)
            prints = fingerprints(config, task, inputs)
            check_same_inputs(world, config, prints)
            opened = reopen_run(config, "grpo", prints, listening, undo) if world.first else None
            prepared = prepare(config, scorer, eval_scorer, answers, opened, world)
            if opened is None and world.first:
                meta = {"fingerprints": prints, **prepared.meta}
                opened = create_run(config, "grpo", f"{task.name}-{config.algorithm}", meta, undo)
            elif opened is not None:
                for name in ("token_budgets", "max_concurrent", "cache_blocks", "memory", "world"):
                    opened.run.set_meta(name, prepared.meta[name])
            session = cls(
                config=config,
                opened=opened,
                callbacks=listening,
                world=world,
                assumptions=prepared.assumptions,
                task=task,
                scorer=scorer,
                eval_scorer=eval_scorer,
                answers=answers,
                engine=prepared.engine,
                **vars(prepared.networks),
            )
            undo.pop_all()
        return session

    @contextmanager
    def recorded(self) -> Iterator[None]:
        with closing(self.scorer), closing(self.eval_scorer), self.answers or nullcontext(), super().recorded():
            yield

    def trainable(self) -> list[tuple[str, torch.nn.Parameter]]:
        critic = [] if self.critic is None else self.critic.named_parameters()
        return [*super().trainable(), *((f"critic.{name}", weight) for name, weight in critic)]

    def tensors(self) -> dict[str, Named]:
        files = super().tensors()
        if self.critic is not None:
            files["critic"] = self.critic.tensors()
        if self.reference is not None and self.config.loss.refresh:
            files["reference"] = ((f"reference/{name}", each) for name, each in self.reference.weights().items())
        return files

    def measure_observation_wait(self) -> float | None:
        if (episodes := self.engine.episodes) is None:
            return None
        waited, episodes.waited = episodes.waited, 0.0
        return waited

    def sampling(self, step: int = 0, purpose: str = "train") -> Sampling:
        return Sampling(
            seed=self.config.seed,
            temperature=self.config.temperature,
            max_new_tokens=self.config.max_new_tokens,
            stop=self.config.stop,
            step=step,
            purpose=purpose,
        )

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        """The problems of a step, the same on all ranks; refuses a task that draws others on some rank."""
        problems, world = draw_problems(self.task, step, count, seed), self.world
        drawn = world.meet(problems_fingerprint(problems) if world.size > 1 else "")
        if others := [rank for rank, each in enumerate(drawn) if each != drawn[0]]:
            raise GrpoError(
                f"task {self.task.name}: in step {step} {world.name(others[0])} drew other problems than rank 0; draw "
                "must depend on step, count and seed only"
            )
        return problems

    def sample(self, problems: Sequence[Problem], step: int) -> Pending:
        """Completions of the problems, being scored: each group while others are still sampled."""
        pending = Pending(self.scorer, step)
        for groups in self.engine.finished_groups(problems, self.config.group_size, self.sampling(step)):
            pending.add(groups)
        return pending

    def score(self, groups: Sequence[Group], step: int) -> list[Group]:
        """+ rewards; also those of single steps or turns, where credit needs them."""
        return self.scored(self.scorer.submit(groups, step))

    def scored(self, pending: Pending) -> list[Group]:
        """Wait for the rewards of the groups in `pending`."""
        groups = pending.collect()
        if self.config.loss.credit == "process":
            return score_steps(self.task, groups, self.policy.tokenizer.batch_decode)
        return reward_turns(self.task, groups) if self.config.loss.turn_weight else groups

    def record(
        self, step: int, groups: Sequence[Group], metrics: Mapping[str, float], seconds: Mapping[str, float]
    ) -> None:
        """Refuses a misnamed weight with the first step, before anything is recorded."""
        if step == 0:
            check_weights([part for group in groups for each in group.completions for part in each.parts], self.config)
        super().record(step, groups, metrics, seconds)

    def refresh_reference(self, step: int) -> None:
        """Copy the policy into the reference every `loss.refresh` steps (iterative GRPO)."""
        every = self.config.loss.refresh
        if every and step and step % every == 0:
            assert self.reference is not None
            self.reference.model.load_state_dict(self.policy.model.state_dict())

    def evaluate(self, step: int) -> None:
        """Measure held-out accuracy after `step` steps, and sample a group for each pinned problem."""
        recorder, world = self.recorder, self.world
        if recorder:
            recorder.wait()
        heldout = self.task.heldout()
        problems = heldout[: self.config.evaluation.problems]
        self.callbacks.on_evaluation_start(step, len(problems))
        row, groups = evaluate(self.engine, self.eval_scorer, problems, self.sampling(), step, world)
        check_best(self.config.checkpoints.best, row)
        if recorder:
            recorder.retry_when_full(lambda: self.run.record_eval(step, row, groups))
        pinned = world.mine(heldout[: self.config.evaluation.probes])
        sampled = self.engine.sample(pinned, self.config.group_size, self.sampling(purpose="probe"))
        probes = world.gather(self.eval_scorer.score(sampled, step))
        if recorder:
            recorder.retry_when_full(lambda: self.run.record_probes(step, probes))
        self.callbacks.on_evaluation(step, row)
        if recorder and step:
            recorder.diagnose(step - 1)
        if world.from_first(lambda: step > 0 and self.run.best_step(up_to=step) == step):
            self.checkpoint(step)
        self.go_on_together()


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a run needs before it is created."""

    networks: Networks
    engine: Engine
    assumptions: Sequence[str]
    """Assumptions to report when a run starts."""
    meta: dict[str, Any]
    """Facts for the record, such as the number of threads, which a resume restores."""


def prepare(
    config: Config,
    scorer: Scorer,
    eval_scorer: Scorer,
    answers: Answers | None,
    opened: OpenRun | None,
    world: World = ALONE,
) -> Prepared:
    """Check memory, load the networks, and run the preflight checks. `opened` is the run to resume, if there is one."""
    run, checkpoint = (opened.run, opened.checkpoint) if opened else (None, None)
    device = pick_device(config.system)
    sizes = check_memory(config, scorer.task, torch.device(device), world, episodes=answers is not None)
    if config.loss.credit == "process":
        check_steps(scorer.task, config.episodes)
    networks = load_networks(config, checkpoint, world, sizes.shard)
    policy = networks.policy
    kept = world.from_first(lambda: Kept.of(run, config, world.size))
    policy.token_budget = kept.token_budgets[world.rank] or sizes.token_budget
    threads = prepare_machine(config.system, policy, world.cores, kept.threads)
    rows = config.system.max_concurrent_completions or kept.rows[world.rank]
    episodes = Episodes(config.episodes, answers, policy) if answers else None
    engine = Engine(policy, rows, kept.cache_blocks[world.rank], episodes)
    if world.first:
        check_disk(config, policy, run.path if run else None, answers is not None)
    assumptions = [
        *warnings(config),
        *lr_warnings(policy, config.lr),
        *(answers.assumptions if answers else unused_in_episodes(config.episodes)),
        *preflight(config, scorer, eval_scorer, policy, engine, world),
        *idle_ranks(config.prompts_per_step, world),
    ]
    meta = {
        "threads": threads,
        "max_concurrent": world.meet(engine.max_concurrent),
        "cache_blocks": world.meet(engine.cache_blocks),
        "token_budgets": world.meet(policy.token_budget),
        "memory": {"device": device, "predicted": sizes.predicted},
        "world": world.layout(sizes.shard),
    }
    return Prepared(networks, engine, assumptions, meta)


def idle_ranks(prompts: int, world: World) -> list[str]:
    """A note where there are more ranks than prompts in a step."""
    if prompts >= world.size:
        return []
    first, last = prompts, world.size - 1
    idle = f"rank {first} has" if first == last else f"ranks {first} to {last} have"
    return [f"prompts_per_step is {prompts}: {idle} nothing to sample; raise it to at least {world.size}"]
