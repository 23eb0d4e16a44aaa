"""Episodes of the built-in engine: the same whenever rows start, pause, go on or are dropped, and as the stock model
would have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

from grpo.model.policy import Policy
from grpo.rollout.builtin import Engine
from grpo.rollout.cpu.kv_cache import DecodeCache
from grpo.rollout.protocol import Sampling
from grpo.rollout.schedule import Look, Room, Schedule
from grpo.types import Completion, Group, Problem
from helpers.interpreted import InterpretedDecoding
from helpers.plays import ScriptedEpisodes
from helpers.policies import ARCHITECTURES, random_adapter, random_policy

PROBLEMS = [Problem(str(i), text, "") for i, text in enumerate(["hello", "a longer prompt", "hi"])]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GROUP_SIZE = 3
SAMPLING = Sampling(seed=0, temperature=1.0, max_new_tokens=40)


class FickleSchedule(Schedule):
    """Looks every other token. Lets a random number of rows in, and drops running and paused rows at random."""

    seed, drops, paused_drops, resumed = 0, 0, 0, 0

    def __init__(self, *arguments: object):
        super().__init__(*arguments, ahead=2)  # type: ignore[arg-type]
        self.generator = np.random.default_rng(self.seed)

    def look(self, ended: Sequence[int], paused: Mapping[int, int] | None = None) -> Look:
        running = int(self._running_N.sum())
        self.room = Room(self.room.blocks, running + int(self.generator.integers(0 if running else 1, 4)))
        look = super().look(ended, paused)
        FickleSchedule.resumed += len(look.resumed)
        return look

    def _grow(self) -> list[int]:
        running, kept = np.flatnonzero(self._running_N), np.flatnonzero(self._kept_N)
        chosen = [n for n in running[1:] if self.generator.random() < 0.1]
        chosen += [n for n in kept if len(running) and self.generator.random() < 0.08]
        FickleSchedule.drops += len(chosen)
        FickleSchedule.paused_drops += len({*chosen} & {*kept.tolist()})
        for n in chosen:
            self._remove(np.array([n]))
        return sorted({*super()._grow(), *map(int, chosen)})


def policy_of(architecture: str) -> Policy:
    policy = random_policy(architecture)
    policy.end_tokens = frozenset([1, 2, 3])
    return policy


def played(
    policy: Policy,
    script: ScriptedEpisodes | None = None,
    sampling: Sampling = SAMPLING,
    room: tuple[int, int] = (0, 0),
) -> list[Group]:
    return Engine(policy, *room, episodes=script or ScriptedEpisodes()).sample(PROBLEMS, GROUP_SIZE, sampling)


def completions_of(groups: Sequence[Group]) -> list[Completion]:
    return [completion for group in groups for completion in group.completions]


def check_same(found: Sequence[Group], expected: Sequence[Group]) -> None:
    for a, b in zip(completions_of(found), completions_of(expected), strict=True):
        assert a.sequence.tolist() == b.sequence.tolist()
        assert a.sampled.tolist() == b.sampled.tolist()
        assert (a.finish, a.turns, a.text, a.steps) == (b.finish, b.turns, b.text, b.steps)
        assert [seen.after for seen in a.observations] == [seen.after for seen in b.observations]
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def check_any_order(
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
    sampling: Sampling = SAMPLING,
    expected: Sequence[Group] | None = None,
) -> None:
    expected = expected or played(policy, sampling=sampling)
    turns = [len(completion.turns) for completion in completions_of(expected)]
    assert {1, 2} <= {*turns}
    assert max(turns) >= 3
    with monkeypatch.context() as patch:
        patch.setattr("grpo.rollout.builtin.Schedule", FickleSchedule)
        patch.setattr("grpo.rollout.builtin.TOKENS_BETWEEN_LOOKS", 2)
        FickleSchedule.drops = FickleSchedule.paused_drops = FickleSchedule.resumed = 0
        check_same(played(policy, sampling=sampling), expected)
    assert FickleSchedule.resumed
    assert FickleSchedule.paused_drops
    assert FickleSchedule.drops > FickleSchedule.paused_drops


# --- the same in any order --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gpt2", "cohere", "granite"])
def test_episodes_are_the_same_in_any_order(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(architecture)
    expected = played(policy)
    check_any_order(policy, monkeypatch, expected=expected)
    check_stock_logprobs(expected, random_policy(architecture, attention="eager"))


def check_stock_logprobs(groups: Sequence[Group], stock: Policy) -> None:
    """In one pass over prompt and episode, of the tokens that it sampled."""
    for group in groups:
        for completion in group.completions:
            tokens = torch.tensor([*group.prompt_tokens, *completion.sequence])
            with torch.no_grad():
                logp_LV = stock.model(tokens[None]).logits[0].log_softmax(-1)
            logp_L = logp_LV[len(group.prompt_tokens) - 1 : -1].gather(
                1, torch.from_numpy(completion.sequence)[:, None]
            )
            np.testing.assert_allclose(completion.logprobs, logp_L[completion.sampled, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "bloom", "gemma2"])
def test_turns_through_generate(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy(architecture, attention="eager")
    policy.padded, policy.end_tokens = True, frozenset([1, 2, 3])
    found = played(policy)
    if architecture == "llama":
        check_same(found, played(policy_of("llama")))
    check_same(played(policy, room=(2, 0)), found)
    check_stock_logprobs(found, random_policy(architecture, attention="eager"))


def test_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_adapter("llama")
    policy.end_tokens = frozenset([1, 2, 3])
    check_any_order(policy, monkeypatch)


@pytest.mark.parametrize("architecture", ["llama", "mistral-window"])
def test_a_cache_that_copies_prompts(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(architecture)
    shared = played(policy)
    monkeypatch.setattr("grpo.rollout.cpu.decoding.SharedPromptCache", DecodeCache)
    check_any_order(policy, monkeypatch, expected=shared)


@pytest.mark.parametrize(
    "options", [{"stop": ("AB", "K", "no")}, {"temperature": 0.0}, {"temperature": 0.7, "top_k": 5}], ids=str
)
def test_stop_strings_and_other_ways_of_sampling(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(**{"seed": 2, "temperature": 1.0, "max_new_tokens": 40} | options)
    check_any_order(policy_of("llama"), monkeypatch, sampling)


def test_rows_are_dropped_where_blocks_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A completion takes up to 10 blocks of 4 tokens, its prompt up to 4: one fits whole, and no two beside it."""
    policy = policy_of("llama")
    expected, looks = played(policy), list[Look]()

    class Watched(Schedule):
        def __init__(self, *arguments: object):
            super().__init__(*arguments, ahead=3)  # type: ignore[arg-type]

        def look(self, ended: Sequence[int], paused: Mapping[int, int] | None = None) -> Look:
            looks.append(super().look(ended, paused))
            return looks[-1]

    monkeypatch.setattr("grpo.rollout.schedule.BLOCK_TOKENS", 4)
    monkeypatch.setattr("grpo.rollout.builtin.Schedule", Watched)
    monkeypatch.setattr("grpo.rollout.builtin.TOKENS_BETWEEN_LOOKS", 3)
    check_same(played(policy, room=(9, 17)), expected)
    assert any(look.resumed for look in looks)
    before = [{*looks[i].running} for i in range(len(looks) - 1)]
    assert any({*look.dropped} - rows for look, rows in zip(looks[1:], before, strict=True)), "a paused row was dropped"


# --- on a GPU, through Triton's interpreter without one ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "one_program", "stop", "schedule"),
    [
        ("llama", True, (), Schedule),
        ("llama", False, ("F", "GA"), FickleSchedule),
        ("gemma", False, (), FickleSchedule),
    ],
)
def test_graph_decoding_plays_the_same_episodes(
    architecture: str,
    one_program: bool,
    stop: tuple[str, ...],
    schedule: type[Schedule],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All rows at once with few looks; or rows that come and go, pause, and are dropped."""
    policy = policy_of(architecture)
    policy.model.to(DEVICE)
    sampling = Sampling(seed=0, temperature=0.8, max_new_tokens=20, stop=stop)
    problems, script = PROBLEMS[:2], ScriptedEpisodes(max_turn_tokens=5)
    expected = Engine(policy, episodes=script).sample(problems, 2, sampling)
    turns = [len(completion.turns) for completion in completions_of(expected)]
    assert max(turns) > min(turns)
    monkeypatch.setattr("grpo.rollout.cuda.graphs.GraphDecoding", InterpretedDecoding)
    monkeypatch.setattr("grpo.rollout.cuda.kernels.one_program.MOST_PROMPT_KEYS", 2**20 if one_program else 0)
    monkeypatch.setattr("grpo.rollout.cuda.batch.SMALLEST_BATCH", 1)
    monkeypatch.setattr(Engine, "_can_use_graphs", lambda *_: True)
    if schedule is FickleSchedule:
        monkeypatch.setattr("grpo.rollout.builtin.Schedule", FickleSchedule)
        monkeypatch.setattr("grpo.rollout.builtin.TOKENS_BETWEEN_LOOKS", 2)
    FickleSchedule.drops = FickleSchedule.resumed = 0
    engine = Engine(policy, episodes=script)
    check_same(engine.sample(problems, 2, sampling), expected)
    assert isinstance(engine.graphs, InterpretedDecoding)
    assert schedule is Schedule or (FickleSchedule.drops and FickleSchedule.resumed)


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_one_turn_changes_no_bit() -> None:
    policy = policy_of("llama")
    script = ScriptedEpisodes(answer=lambda *_: None)
    single = completions_of(Engine(policy).sample(PROBLEMS, GROUP_SIZE, SAMPLING))
    for a, b in zip(completions_of(played(policy, script)), single, strict=True):
        assert (a.tokens.tolist(), a.logprobs.tobytes()) == (b.tokens.tolist(), b.logprobs.tobytes())
        assert (a.text, a.finish, a.turns, a.observations) == (b.text, b.finish, (b.text,), ())
    [play] = script.plays
    assert len(play.collected) == 1
    assert play.closed == 1


def test_one_row_goes_on_while_the_others_have_ended() -> None:
    """Five turns for completion 4, one for all others; only its own tokens are fed after the first round."""
    policy = policy_of("llama")
    script = ScriptedEpisodes(answer=lambda n, turn, _: [5, 1, 6] if n == 4 and turn < 4 else None, turn_rewards=True)
    shapes: list[tuple[int, int]] = []
    hook = policy.model.get_input_embeddings().register_forward_hook(lambda _, i, __: shapes.append(i[0].shape))
    sampling = Sampling(seed=0, temperature=1.0, max_new_tokens=128)
    completions = completions_of(played(policy, script, sampling))
    hook.remove()
    long = completions[4]
    ends = np.cumsum([len(turn) + 1 for turn in long.turns])  # a token is a character here, and an end token follows
    assert [len(c.turns) for c in completions] == [1, 1, 1, 1, 5, 1, 1, 1, 1]
    assert [(seen.after, seen.tokens.tolist()) for seen in long.observations] == [(end, [5, 1, 6]) for end in ends[:4]]
    assert long.steps == tuple((end - 1, float(i)) for i, end in enumerate(ends.tolist()))
    assert (long.text, long.finish, long.traits) == (long.turns[-1], "stop", {"over": 1.0})
    assert len(long) + 12 == len(long.sequence)
    assert script.plays[0].collected[1:] == [
        {4: 128 - end - 3 * i} for i, end in enumerate(ends.tolist()[1:], start=1)
    ], "rounds of one row, and the places that it has left"
    own = sum(rows for rows, columns in shapes if columns == 1)
    assert own <= sum(len(c) - 1 for c in completions) * 1.25 + 16
    assert shapes[-1] == (1, 1)


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_a_prompt_is_computed_once_while_it_has_rows_or_paused_ones(rows: int) -> None:
    policy = policy_of("llama")
    shapes: list[tuple[int, int]] = []
    hook = policy.model.get_input_embeddings().register_forward_hook(lambda _, i, __: shapes.append(i[0].shape))
    groups = Engine(policy, rows, 100, ScriptedEpisodes()).sample(PROBLEMS, GROUP_SIZE, SAMPLING)
    hook.remove()
    assert sum(columns for _, columns in shapes if columns > 1) == sum(len(group.prompt_tokens) for group in groups)
    fed = [rows for rows, columns in shapes if columns == 1]
    assert max(fed) <= rows
    places = sum(len(completion.sequence) - 1 for completion in completions_of(groups))
    assert places <= sum(fed) <= 1.4 * places


def test_openings_are_read_before_the_first_turn() -> None:
    policy = policy_of("llama")
    script = ScriptedEpisodes(openings={1: [4, 1, 9], 8: [7]})
    groups, without = played(policy, script), completions_of(played(policy))
    completions = completions_of(groups)
    for n, tokens in ((1, [4, 1, 9]), (8, [7])):
        assert (
            completions[n].observations[0].tokens.tolist() == tokens == completions[n].sequence[: len(tokens)].tolist()
        )
        assert completions[n].observations[0].after == 0
        assert completions[n].tokens.tolist() != without[n].tokens.tolist()
    assert completions[0].tokens.tolist() == without[0].tokens.tolist()
    check_stock_logprobs(groups, random_policy("llama", attention="eager"))


# --- limits -----------------------------------------------------------------------------------------------------------


def test_limits_of_a_turn_and_of_all_places() -> None:
    policy = policy_of("llama")
    free = completions_of(played(policy))
    script = ScriptedEpisodes(max_turn_tokens=6)
    cut = completions_of(played(policy, script))
    for whole, part in zip(free, cut, strict=True):
        lengths = [len(turn) + 1 for turn in whole.turns]  # with the end token
        turns = next((i for i, length in enumerate(lengths) if length > 6), len(lengths))
        assert part.turns[:turns] == whole.turns[:turns]
        if turns < len(lengths):
            assert (part.finish, part.text) == ("turn_length", whole.turns[turns][:6])
            assert len(part.turns) == turns + 1
    finishes = [completion.finish for completion in cut]
    assert {"stop", "turn_length"} <= {*finishes}
    places = sorted(len(completion.sequence) for completion in free)[5]
    few = Sampling(seed=0, temperature=1.0, max_new_tokens=places)
    for whole, part in zip(free, completions_of(played(policy, sampling=few)), strict=True):
        assert part.sequence.tolist() == whole.sequence[: len(part.sequence)].tolist()
        assert part.finish == (whole.finish if len(whole.sequence) <= places else "length")


def test_a_turn_that_ends_at_the_last_place_has_no_room_to_go_on() -> None:
    policy = policy_of("llama")
    script = ScriptedEpisodes(answer=lambda *_: [4])
    first = completions_of(played(policy, ScriptedEpisodes(answer=lambda *_: None)))[0]
    sampling = Sampling(seed=0, temperature=1.0, max_new_tokens=len(first))
    again = completions_of(played(policy, script, sampling))[0]
    assert again.tokens.tolist() == first.tokens.tolist()
    [play] = script.plays
    assert [turn.finish for turn in play.turns[0]] == ["stop"]
    assert play.collected[0][0] == 0
    assert (again.finish, again.observations) == ("length", ())


def test_stop_strings_count_within_a_turn() -> None:
    """A token is a character: every turn ends at its own first C, D or E (tokens 2 to 4), whatever was said before."""
    policy = policy_of("llama")
    policy.end_tokens = frozenset()
    script = ScriptedEpisodes(answer=lambda _, turn, __: [2, 3, 4, 4] if turn < 2 else None)
    sampling = Sampling(seed=0, temperature=1.0, max_new_tokens=64, stop=("C", "D", "E"))
    completions = completions_of(played(policy, script, sampling))
    for completion in completions:
        for i, turn in enumerate(completion.turns):
            if i + 1 < len(completion.turns) or completion.finish == "stop":
                assert turn[-1] in "CDE"
            assert not {*turn[:-1]} & {*"CDE"}
    assert max(len(completion.turns) for completion in completions) == 3


# --- ends -------------------------------------------------------------------------------------------------------------


def test_a_play_is_closed_however_the_rollout_ends() -> None:
    class BrokenError(Exception): ...

    def answer(completion: int, turn: int, text: str) -> None:
        raise BrokenError

    policy = policy_of("llama")
    script = ScriptedEpisodes(answer=answer)
    with pytest.raises(BrokenError):
        played(policy, script)
    assert [play.closed for play in script.plays] == [1]
    engine = Engine(policy, 1, 100, script := ScriptedEpisodes())
    engine.finished_groups(PROBLEMS, GROUP_SIZE, SAMPLING).close()
    assert script.plays == [], "a rollout that never began"
    groups = engine.finished_groups(PROBLEMS, GROUP_SIZE, SAMPLING)
    next(groups)
    groups.close()
    assert [play.closed for play in script.plays] == [1]
    hooked = any("forward" in vars(module) for module in policy.model.modules())
    assert not hooked, "the model is as it was"
