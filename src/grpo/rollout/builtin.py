"""The built-in engine: samples groups from the training weights, in process.

Each prompt is computed once per group. Its completions start from those keys and values, advance one token at a time,
and leave the batch as they finish; others take their place when memory does not hold all at once. A schedule decides
which completions run, and a decoding samples their tokens. With episodes, a completion has several turns and reads an
observation between them (rounds.py). docs/paths.md lists the ways of decoding, docs/rollout.md draws the schedule. Axis
letters: types.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.filesize import decimal as readable

from grpo.errors import GrpoError
from grpo.model.device import free_memory
from grpo.model.fused.weights import has_fixed_rotation
from grpo.model.policy import Policy
from grpo.rollout.cpu.decoding import StepDecoding
from grpo.rollout.decoding import Decoding
from grpo.rollout.hf_generate import GenerateDecoding
from grpo.rollout.noise import sampling_noise
from grpo.rollout.prompts import prompts_of
from grpo.rollout.protocol import Episodes, Play, Sampling
from grpo.rollout.rounds import Rounds
from grpo.rollout.schedule import BLOCK_TOKENS, TOKENS_BETWEEN_LOOKS, Room, Schedule, blocks_of
from grpo.rollout.stop_strings import StopStrings
from grpo.rollout.turns import TurnReader
from grpo.types import Completion, Group, Problem

if TYPE_CHECKING:
    from grpo.model.plan.work import Work
    from grpo.rollout.cuda.graphs import GraphDecoding

SHARE_OF_FREE_MEMORY = 0.4
"""Share of free memory for completions being sampled; gradients, optimizer state and activations need the rest."""
LOGIT_BYTES = 12
"""Of a logit of a running row, with what is computed from it."""


class Engine:
    def __init__(
        self, policy: Policy, max_concurrent: int = 0, cache_blocks: int = 0, episodes: Episodes | None = None
    ):
        """`max_concurrent`: most completions sampled at once; 0: as many as the KV cache holds. `cache_blocks`: its
        blocks of 64 tokens; 0: as many as fit in memory. `episodes`: what answers completions between their turns;
        without it, a completion is one turn."""
        self.max_concurrent, self.cache_blocks = max_concurrent, cache_blocks
        self.policy, self.episodes = policy, episodes
        self.graphs: GraphDecoding | None = None
        self.expected: Work | None = None
        """The steps and evaluations of a run (expected.py)."""

    def sample(self, problems: Sequence[Problem], group_size: int, sampling: Sampling) -> list[Group]:
        """`group_size` completions of each problem, in order."""
        found: dict[int, Group] = {}
        for groups in self.finished_groups(problems, group_size, sampling):
            found.update(groups)
        return [found[number] for number in range(len(problems))]

    @torch.no_grad()
    def finished_groups(
        self, problems: Sequence[Problem], group_size: int, sampling: Sampling
    ) -> Iterator[dict[int, Group]]:
        """The groups of `sample` as they are finished, by the number of their problem."""
        if not problems:  # a rank may have none
            return
        if self.episodes is None:
            yield from self._finished_groups(problems, group_size, sampling, None)
            return
        with closing(self.episodes.begin(problems, group_size, sampling)) as play:
            yield from self._finished_groups(play.problems, group_size, sampling, play)

    def _finished_groups(
        self, problems: Sequence[Problem], group_size: int, sampling: Sampling, play: Play | None
    ) -> Iterator[dict[int, Group]]:
        prompts = prompts_of(self.policy, problems, play.prompts if play else {}, sampling.max_new_tokens)
        prompt_texts = self.policy.texts(prompts)
        stop = StopStrings(self.policy, sampling.stop) if sampling.stop else None
        lengths = [len(prompt) for prompt in prompts]
        self.measure(len(problems) * group_size, max(lengths), sampling)
        schedule = Schedule(lengths, group_size, sampling.max_new_tokens, self.room(lengths, group_size, sampling))
        decoding = self._decoding(schedule, problems, prompts, sampling, stop)
        reader = TurnReader(decoding, self.policy, stop)
        rounds = (
            Rounds(play, schedule, decoding, reader, self.episodes.max_turn_tokens) if self.episodes and play else None
        )
        ended: list[int] = []
        paused: dict[int, int] = {}
        while not schedule.done:
            look = schedule.look(ended, paused)
            decoding.change(look)
            if look.finished:
                numbers = [p * group_size + i for p in look.finished for i in range(group_size)]
                completions = rounds.completions(numbers) if rounds else _single_turns(reader, numbers)
                yield {
                    p: Group(
                        problems[p],
                        prompts[p],
                        tuple(completions[i * group_size : (i + 1) * group_size]),
                        self.policy.version,
                        prompt_text=prompt_texts[p],
                    )
                    for i, p in enumerate(look.finished)
                }
            if look.running:
                tokens = min(TOKENS_BETWEEN_LOOKS, schedule.left)
                turned = decoding.decode(tokens)
                schedule.advance(tokens)
                ended, paused = ([], rounds.answer(turned)) if rounds else (turned, {})
            elif rounds and not schedule.done:
                ended, paused = rounds.collect(), {}

    def measure(self, rows: int, prompt_tokens: int, sampling: Sampling) -> None:
        """Finds what memory holds, if it is not known yet, and keeps it for all later calls. `rows`: most completions
        of a call; `prompt_tokens`: those of the longest prompt."""
        new_tokens = sampling.max_new_tokens
        if self._can_use_graphs(sampling):
            least = blocks_of(prompt_tokens) + blocks_of(new_tokens)
            rows = min(rows, self.max_concurrent or rows)
            self.cache_blocks = self.cache_blocks or self.blocks_that_fit(rows, least)
        elif not sampling.restricted:  # restricted sampling on a GPU must not set the row limit of CUDA graphs
            self.max_concurrent = self.max_concurrent or self.rows_that_fit(prompt_tokens, new_tokens)

    def room(self, prompt_tokens: Sequence[int], group_size: int, sampling: Sampling) -> Room:
        """What sampling these prompts may hold at once: at most what full length would need."""
        P, longest, new_tokens = len(prompt_tokens), max(prompt_tokens), sampling.max_new_tokens
        most = self.max_concurrent
        if not most and not self._can_use_graphs(sampling):
            most = self.rows_that_fit(longest, new_tokens)
        rows = min(P * group_size, most or P * group_size)
        # Counted by the longest prompt, which varies less from step to step than their sum: graphs are kept.
        needed = min(P, rows) * blocks_of(longest) + rows * blocks_of(new_tokens)
        return Room(min(needed, self.cache_blocks or needed), rows)

    def rows_that_fit(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """Completions of full length that free memory holds at once. Not under CUDA graphs, which hold blocks."""
        per_row = self.bytes_per_token() * (prompt_tokens + max_new_tokens) + self.logits_bytes()
        return max(1, int(SHARE_OF_FREE_MEMORY * free_memory(self.policy.device) / per_row))

    def blocks_that_fit(self, rows: int, least: int = 1) -> int:
        """Blocks of keys and values that free memory holds beside the logits of `rows` rows; refuses fewer than
        `least`."""
        block, logits = self.bytes_per_token() * BLOCK_TOKENS, self.logits_bytes() * rows
        free = free_memory(self.policy.device)
        share = int(SHARE_OF_FREE_MEMORY * free)
        blocks = (share - logits) // block
        if blocks < least:
            raise GrpoError(
                f"memory: sampling {rows} completions at once needs {readable(logits + least * block)} "
                f"({readable(logits)} for logits, {readable(least * block)} for the keys and values of one), and may "
                f"take {readable(share)} of the {readable(free)} free on {self.policy.device}; lower prompts_per_step, "
                "group_size, evaluation.problems, max_new_tokens or system.max_concurrent_completions"
            )
        return blocks

    def logits_bytes(self) -> int:
        """Those of a row."""
        return LOGIT_BYTES * int(self.policy.model.config.vocab_size)

    def bytes_per_token(self) -> int:
        """Those of a token's keys and values; an upper bound for models without attention."""
        config = self.policy.model.config
        uneven, layers = getattr(config, "is_heterogeneous", False), range(config.num_hidden_layers)
        numbers = sum(_key_width(config.per_layer_config[layer] if uneven else config) for layer in layers)
        return 2 * numbers * self.policy.compute_dtype.itemsize

    def _can_use_graphs(self, sampling: Sampling) -> bool:
        return (
            self.policy.device.type == "cuda"
            and not self.policy.padded
            and self.policy.compute_dtype in (torch.bfloat16, torch.float16, torch.float32)
            and has_fixed_rotation(self.policy.model)
            and not sampling.restricted
        )

    def _decoding(
        self,
        schedule: Schedule,
        problems: Sequence[Problem],
        prompts: Sequence[np.ndarray],
        sampling: Sampling,
        stop: StopStrings | None,
    ) -> Decoding:
        ids, group_size, device = [problem.id for problem in problems], schedule.group_size, self.policy.device
        noise_NL = sampling_noise(
            sampling.seed, sampling.purpose, sampling.step, ids, group_size, sampling.max_new_tokens, device
        ).flatten(0, 1)
        if self.policy.padded:
            return GenerateDecoding(self.policy, prompts, noise_NL, sampling, stop)
        if self._can_use_graphs(sampling):
            graphs = self._graphs_for(schedule, prompts)
            graphs.begin(schedule, prompts, noise_NL, sampling.temperature, stop)
            return graphs
        return StepDecoding(self.policy, prompts, noise_NL, sampling, stop, schedule.room.rows)

    def _graphs_for(self, schedule: Schedule, prompts: Sequence[np.ndarray]) -> GraphDecoding:
        """The graphs of earlier calls, or new ones where those are too small or the weights have moved."""
        from grpo.rollout.cuda.batch import Capacity
        from grpo.rollout.cuda.graphs import GraphDecoding

        needed = Capacity.of_rollout(schedule, prompts)
        if self.expected:
            needed = needed.joined(Capacity.of_run(self.expected, self.cache_blocks))
        held = self.graphs
        if held is not None and not held.addresses.match(self.policy.model):
            held = None
        if held is None or not held.capacity.holds(needed):
            needed = needed if held is None else held.capacity.joined(needed)
            self.graphs = held = None  # frees its memory for the next
            self.graphs = held = GraphDecoding(self.policy, needed)
        return held


def _key_width(config: Any) -> int:
    """Numbers of a layer's keys for one token."""
    heads = getattr(config, "num_attention_heads", 1)
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    return key_heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)


def _single_turns(reader: TurnReader, completions: Sequence[int]) -> list[Completion]:
    return [
        Completion(turn.text, turn.tokens, turn.logprobs, "stop" if turn.stopped else "length")
        for turn in reader.read(completions)
    ]
