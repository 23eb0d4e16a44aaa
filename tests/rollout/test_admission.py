"""Completions are the same whenever their rows start, whatever runs beside them, and however often they are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from grpo.model.load import load_policy
from grpo.model.policy import Policy
from grpo.rollout.cpu.decoding import StepDecoding
from grpo.rollout.cpu.kv_cache import DecodeCache
from grpo.rollout.cpu.linear import ReorderedLinear
from grpo.rollout.hf_generate import GenerateDecoding
from grpo.rollout.noise import sampling_noise
from grpo.rollout.protocol import Sampling
from grpo.rollout.schedule import Look, Room, Schedule
from grpo.rollout.stop_strings import StopStrings
from grpo.tasks import load_task
from helpers.policies import ARCHITECTURES, random_adapter, random_policy

GROUP_SIZE = 3
PROMPTS = ["hello", "a longer prompt", "hi"]


class RandomSchedule:
    """Starts and drops completions at random, in any order."""

    def __init__(self, completions: int, seed: int):
        self.generator = np.random.default_rng(seed)
        self.waiting, self.running = list(range(completions)), set[int]()
        self.room = Room(blocks=10_000, rows=completions)

    @property
    def done(self) -> bool:
        return not self.waiting and not self.running

    def look(self, ended: Sequence[int]) -> Look:
        assert self.running >= set(ended), "an ending is reported once"
        self.running -= set(ended)
        if len(self.running) > 1 and self.generator.random() < 0.3:
            dropped = self.generator.choice(sorted(self.running), self.generator.integers(1, len(self.running)), False)
            self.running -= set(dropped.tolist())
            self.waiting += dropped.tolist()
            return Look((), tuple(dropped.tolist()), tuple(sorted(self.running)), ())
        count = min(int(self.generator.integers(0 if self.running else 1, 5)), len(self.waiting))
        started = sorted(self.generator.choice(self.waiting, count, False).tolist()) if count else []
        self.waiting = [completion for completion in self.waiting if completion not in started]
        self.running |= set(started)
        return Look(tuple(started), (), tuple(sorted(self.running)), ())

    def advance(self, tokens: int) -> None: ...


@dataclass
class Rollout:
    completions: list[tuple[np.ndarray, np.ndarray]]
    """Tokens and log-probabilities."""
    late: int = 0
    """Rows that started beside others that go on."""
    dropped: int = 0


class Case:
    """The same completions, decoded by any schedule."""

    def __init__(self, policy: Policy, prompts: Sequence[list[int]] = (), **options: object):
        self.policy = policy
        if not prompts:
            policy.end_tokens = frozenset([1, 2, 3])  # so that lengths differ
        self.prompts = [np.array(row) for row in prompts or (policy.tokenizer(text)["input_ids"] for text in PROMPTS)]
        self.sampling = Sampling(**{"seed": 0, "temperature": 1.0, "max_new_tokens": 16} | options)
        self.new_tokens, ids = self.sampling.max_new_tokens, [str(i) for i in range(len(self.prompts))]
        self.noise_NL = sampling_noise(0, "train", 0, ids, GROUP_SIZE, self.new_tokens).flatten(0, 1)

    def rollout(self, schedule: Schedule | RandomSchedule, tokens_between_looks: int) -> Rollout:
        stop = StopStrings(self.policy, self.sampling.stop) if self.sampling.stop else None
        case = self.policy, self.prompts, self.noise_NL, self.sampling, stop
        decoding = GenerateDecoding(*case) if self.policy.padded else StepDecoding(*case, rows=schedule.room.rows)
        done, ended = Rollout([]), []
        while not schedule.done:
            look = schedule.look(ended)
            decoding.change(look)
            done.late += len(look.started) if len(look.running) > len(look.started) else 0
            done.dropped += len(look.dropped)
            ended = decoding.decode(tokens_between_looks)
            schedule.advance(tokens_between_looks)
        results = zip(*decoding.read(range(len(self.noise_NL))), strict=True)
        done.completions = [(tokens[:length], logp[:length]) for tokens, logp, length in results]
        return done

    def whole(self) -> Rollout:
        """All rows start at once."""
        return self.rollout(self.schedule(Room(blocks=10_000, rows=10_000), self.new_tokens), self.new_tokens)

    def schedule(self, room: Room, tokens_between_looks: int) -> Schedule:
        lengths = [len(prompt) for prompt in self.prompts]
        return Schedule(lengths, GROUP_SIZE, self.new_tokens, room, tokens_between_looks)


def check_same(rollout: Rollout, expected: Rollout) -> None:
    for (tokens, logp), (same_tokens, same_logp) in zip(rollout.completions, expected.completions, strict=True):
        assert tokens.tolist() == same_tokens.tolist()
        np.testing.assert_allclose(logp, same_logp, atol=1e-4)


def check_any_order(
    case: Case, tokens_between_looks: tuple[int, ...] = (2, 3), expected: Rollout | None = None
) -> None:
    expected = expected or case.whole()
    assert len({len(tokens) for tokens, _ in expected.completions}) > 1, "one length would not test rows that leave"
    late = dropped = 0
    for seed, tokens in enumerate(tokens_between_looks):
        rollout = case.rollout(RandomSchedule(len(case.noise_NL), seed), tokens)
        check_same(rollout, expected)
        late, dropped = late + rollout.late, dropped + rollout.dropped
    assert case.policy.padded or (late and dropped)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gpt2", "cohere", "granite"])
def test_completions_are_the_same_in_any_order(architecture: str) -> None:
    check_any_order(Case(random_policy(architecture)))


@pytest.mark.parametrize("architecture", ["llama", "bloom", "gemma2"])
def test_rows_run_to_their_end_through_generate(architecture: str) -> None:
    policy = random_policy(architecture, attention="eager")
    policy.padded = True
    step_by_step = Case(random_policy("llama")).whole() if architecture == "llama" else None
    check_any_order(Case(policy), (1,), step_by_step)


def test_a_models_own_generation_settings_have_no_effect() -> None:
    """They would change the distribution that is sampled, and not the one that is trained."""
    policy = random_policy("bloom", attention="eager")
    policy.padded = True
    expected = Case(policy).whole()
    own = policy.model.generation_config
    own.repetition_penalty, own.no_repeat_ngram_size, own.suppress_tokens, own.num_beams = 1.5, 2, [3, 4, 5], 2
    check_same(Case(policy).whole(), expected)
    assert policy.model.generation_config is own


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_adapters(architecture: str) -> None:
    check_any_order(Case(random_adapter(architecture)))


@pytest.mark.parametrize("architecture", ["llama", "mistral-window"])
def test_a_cache_that_copies_prompts(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(random_policy(architecture))
    shared = case.whole()
    monkeypatch.setattr("grpo.rollout.cpu.decoding.SharedPromptCache", DecodeCache)
    check_any_order(case, expected=shared)


@pytest.mark.parametrize(
    "options", [{"stop": ("AB", "C", "no")}, {"temperature": 0.0}, {"temperature": 0.7, "top_k": 5}], ids=str
)
def test_stop_strings_and_other_ways_of_sampling(options: dict[str, object]) -> None:
    check_any_order(Case(random_policy("llama"), **options))


@pytest.mark.parametrize(("blocks", "rows", "tokens"), [(100, 4, 3), (1000, 7, 1)])
def test_an_embedded_model_in_any_room(blocks: int, rows: int, tokens: int) -> None:
    case = arithmetic()
    rollout = case.rollout(case.schedule(Room(blocks, rows), tokens), tokens)
    check_same(rollout, case.whole())
    assert rollout.late


def test_looks_change_no_bit_where_nothing_starts_late() -> None:
    case = arithmetic()
    rollout = case.rollout(case.schedule(Room(blocks=1000, rows=12), 3), 3)
    for (tokens, logp), (same_tokens, same_logp) in zip(rollout.completions, case.whole().completions, strict=True):
        assert tokens.tolist() == same_tokens.tolist()
        assert logp.tobytes() == same_logp.tobytes()


def test_dropped_rows_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.rollout.schedule.BLOCK_TOKENS", 4)
    case = arithmetic(new_tokens=32)
    case.policy.end_tokens = frozenset()
    # A completion takes 8 blocks in the end. Three start in 20, where each can grow to 5; later one is dropped.
    rollout = case.rollout(case.schedule(Room(blocks=20, rows=12), 5), 5)
    check_same(rollout, case.whole())
    assert rollout.dropped


def test_a_row_at_its_limit_stays_until_the_next_compaction() -> None:
    """It is fed with the others for a while: its position stays within the model's, and its tokens are not replaced."""
    policy = random_policy("gpt2")  # 256 learned positions
    policy.end_tokens = frozenset()
    case = Case(policy, [[5] * 240, [7] * 3])
    decoding = StepDecoding(policy, case.prompts, case.noise_NL, case.sampling, None, rows=6)
    decoding.change(Look(started=(0,), dropped=(), running=(0,), finished=()))
    assert decoding.decode(4) == []
    decoding.change(Look(started=(1, 2, 3, 4, 5), dropped=(), running=(0, 1, 2, 3, 4, 5), finished=()))
    assert decoding.decode(14) == [0]  # 1 + 4 + 11 tokens
    assert decoding.completion_M.tolist() == [0, 1, 2, 3, 4, 5]
    assert decoding.decode(32) == [1, 2, 3, 4, 5]
    check_same(Rollout([*zip(*decoding.read(range(6))[:2], strict=True)]), case.whole())


def arithmetic(new_tokens: int = 64) -> Case:
    policy = load_policy("nano")
    problems = load_task("arithmetic").draw(step=0, count=4, seed=1)
    return Case(policy, [policy.prompt_tokens(problem) for problem in problems], max_new_tokens=new_tokens)


def test_the_model_is_as_it_was_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are reordered once per rollout. They are in the model only while it decodes."""
    case = Case(random_policy("llama"))
    expected = case.whole()
    monkeypatch.setattr("grpo.rollout.cpu.linear.SMALL_MODEL", 10)
    reordered: list[ReorderedLinear] = []
    real_make, real_look = ReorderedLinear.__init__, RandomSchedule.look

    def look(self: RandomSchedule, ended: Sequence[int]) -> Look:
        assert all("forward" not in vars(module) for module in case.policy.model.modules())
        return real_look(self, ended)

    monkeypatch.setattr(RandomSchedule, "look", look)
    monkeypatch.setattr(
        ReorderedLinear, "__init__", lambda self, *x, **y: reordered.append(self) or real_make(self, *x, **y)
    )
    check_any_order(case, (2,), expected)
    assert len(reordered) == 2 * 5 + 1, "two blocks of qkv, out, gate, up, down; and the output layer"


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_a_prompt_is_computed_once_however_few_rows_there_are(rows: int) -> None:
    case = Case(random_policy("llama"))
    shapes: list[tuple[int, int]] = []
    hook = case.policy.model.get_input_embeddings().register_forward_hook(lambda _, i, __: shapes.append(i[0].shape))
    rollout = case.rollout(case.schedule(Room(blocks=1000, rows=rows), 1), 1)
    hook.remove()
    assert sum(columns for _, columns in shapes if columns > 1) == sum(map(len, case.prompts))
    fed = [rows for rows, columns in shapes if columns == 1]
    assert max(fed) <= rows
    # A row that ends leaves at once if another starts. When none waits, it stays until the next compaction.
    tokens = sum(len(tokens) - 1 for tokens, _ in rollout.completions)
    assert tokens <= sum(fed) <= 1.25 * tokens
