"""From rewards to advantages: weights, penalties, parts, steps and values, with numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import grpo
from grpo.config import Config, Critic, Episodes, Evaluation, System
from grpo.config.schema import Loss
from grpo.errors import GrpoError
from grpo.rewards import Scorer
from grpo.rewards.steps import check_steps, reward_turns, score_steps
from grpo.tasks.arithmetic import Arithmetic
from grpo.training.credit import check_weights, credit, states_of, turn_rewards
from grpo.types import Completion, Group, Observation, Problem


def completion(length: int = 2, reward: float | None = 0.0, **more) -> Completion:
    parts = more.pop("parts", {"correct": reward})
    return Completion("", np.arange(length), np.zeros(length), "stop", parts=parts, reward=reward, **more)


def group(*completions: Completion) -> Group:
    return Group(Problem("p", "", ""), np.array([1]), completions, 0)


def first_advantages(config: Config, *groups: Group) -> list[list[float]]:
    """Of the first token of every completion."""
    return [[float(c.advantages[0]) for c in g.completions] for g in credit(groups, config)[0]]


def config(max_new_tokens: int = 10, **loss) -> Config:
    settings = {"scale": "none", "beta": 0.0} | loss
    return Config(max_new_tokens=max_new_tokens, loss=Loss(**settings))


def test_weights_of_the_parts() -> None:
    both = group(
        completion(reward=1.5, parts={"correct": 1.0, "format": 0.5}),
        completion(reward=0.5, parts={"correct": None, "format": 0.5}),
    )
    # As they are: 1.5 and 0.5. With correct=3, format=−1: 3 − 0.5 = 2.5 and −0.5, a part that does not apply left out.
    assert first_advantages(config(), both) == [[0.5, -0.5]]
    assert first_advantages(config(weights="correct=3, format=-1"), both) == [[1.5, -1.5]]
    assert first_advantages(config(weights="format=3"), both) == [[0.5, -0.5]]  # 1 + 1.5 and 1.5
    with pytest.raises(GrpoError, match=r"field loss.weights: unknown part 'form'; the reward has correct, format"):
        check_weights(both.completions[0].parts, config(weights="form=1"))


def test_a_part_that_a_later_step_lacks_stops_no_run(tmp_path: Path) -> None:
    class Kinds(Arithmetic):
        def score(self, problem: Problem, text: str) -> dict[str, float | None]:
            return {"later" if problem.id.startswith("train/1/") else "first": 0.5}

    settings = Config(model="nano", algorithm="dr_grpo", steps=2, prompts_per_step=1, group_size=2, max_new_tokens=4)
    settings = replace(settings, evaluation=Evaluation(problems=1), system=System(runs=str(tmp_path)))
    named = replace(settings, loss=replace(settings.loss, weights="first=2"))
    with grpo.train(named, task=Kinds()) as run:
        assert [row["reward_mean"] for row in run.metrics()] == [0.5, 0.5]
    misnamed = replace(settings, loss=replace(settings.loss, weights="frist=2"))
    with pytest.raises(GrpoError, match="unknown part 'frist'; the reward has first"):
        grpo.train(misnamed, task=Kinds())


def test_nor_does_a_function_that_failed_on_all_of_a_step() -> None:
    failed = group(*(completion(reward=None, parts={"long": 0.5}) for _ in range(2)))
    check_weights(failed.completions[0].parts, replace(config(weights="short=2"), reward="mine.py:short, mine.py:long"))
    with pytest.raises(GrpoError, match="unknown part 'short'"):
        check_weights(failed.completions[0].parts, replace(config(weights="short=2"), reward="mine.py:long"))


def test_the_reward_of_an_environment_keeps_its_weight_beside_a_weighted_task() -> None:
    # reward = 0.5 * correct + Guess.
    parts = [{"correct": 1.0, "Guess": 0.0}, {"correct": 0.0, "Guess": 1.0}]
    two = group(*(completion(reward=0.5 * p["correct"] + p["Guess"], parts=p) for p in parts))
    played = replace(config(), reward="task*0.5", episodes=Episodes(env="games.py:Guess"))
    assert first_advantages(played, two) == [[-0.25, 0.25]]
    weighed = replace(played, loss=replace(played.loss, weights="correct=4"))
    assert first_advantages(weighed, two) == [[0.5, -0.5]]  # 4 * 0.5 = 2 and 1


def test_weights_of_the_parts_come_on_top_of_those_in_the_field_reward() -> None:
    # reward = short * 0.5: parts are recorded as they were earned, the reward as they were paid.
    parts = [{"short": 1.0, "long": 0.0}, {"short": 0.0, "long": 1.0}]
    two = group(*(completion(reward=0.5 * p["short"] + 2 * p["long"], parts=p) for p in parts))
    named = "mine.py:short*0.5, mine.py:long*2"
    assert first_advantages(config(), two) == [[-0.75, 0.75]]  # 0.5 and 2
    assert first_advantages(replace(config(weights="short=4"), reward=named), two) == [[0.0, 0.0]]  # 2 and 2
    # Normalised, each part is ±0.7071 (up to 1e-4): the difference of the weights decides the sign.
    both = config(parts="normalise", scale="group_std")
    assert first_advantages(both, two)[0][0] == pytest.approx(0.0, abs=1e-6)
    assert first_advantages(replace(both, reward=named), two)[0][0] < -0.7


def test_a_check_that_ran_out_of_time_earned_nothing_of_any_part() -> None:
    done = [completion(reward=1.0), replace(completion(reward=0.0, parts={}), why="timeout in task code: 10 s")]
    assert first_advantages(config(weights="correct=2"), group(*done)) == [[1.0, -1.0]]
    [[right, late]] = first_advantages(config(parts="normalise", scale="group_std"), group(*done))
    assert right == -late > 0.7
    # Where every check did, there is no part to miss.
    assert first_advantages(config(weights="correct=2"), group(done[1], done[1])) == [[0.0, 0.0]]


def test_the_record_keeps_the_tasks_reward() -> None:
    both = group(completion(reward=1.0), completion(reward=0.0))
    groups, metrics = credit([both], config(weights="correct=5"))
    assert [c.reward for c in groups[0].completions] == [1.0, 0.0]
    assert metrics["reward_mean"] == 0.5


def test_the_penalty_for_length() -> None:
    # Room 10, the last fifth is 9 and 10: lengths 8, 9, 10 lose 0, 0.5 and 1.
    three = group(completion(8, 1.0), completion(9, 1.0), completion(10, 1.0))
    assert first_advantages(config(overlong=0.2), three) == [pytest.approx([0.5, 0.0, -0.5])]
    assert first_advantages(config(), three) == [[0.0, 0.0, 0.0]]
    assert credit([three], config(overlong=0.2))[1]["overlong_penalty"] == pytest.approx(0.5)
    # max_new_tokens counts what an episode read, too: 5 tokens sampled and 3 read, 6 and 3, 7 and 3.
    played = group(*(episode(turns, "r", reward=1.0) for turns in ("ab abc", "abc abc", "abcd abc")))
    for loss in ({}, {"parts": "normalise"}):
        assert first_advantages(config(overlong=0.2, **loss), played)[0][1] == pytest.approx(0.0)
    assert first_advantages(config(overlong=0.2), played) == [pytest.approx([0.5, 0.0, -0.5])]
    assert credit([played], config(overlong=0.2))[1]["overlong_penalty"] == pytest.approx(0.5)


def test_kl_in_the_reward() -> None:
    # k1 by the sampler: logp − ref = 0.5 on two tokens, 0 on the other completion's; β = 0.1 takes 0.1 off the first.
    drifted = replace(completion(reward=1.0), ref_logprobs=np.full(2, -0.5, np.float32))
    stayed = replace(completion(reward=0.0), ref_logprobs=np.zeros(2, np.float32))
    settings = {"baseline": "leave_one_out", "beta": 0.1, "kl": "k1"}
    groups, metrics = credit([group(drifted, stayed)], config(kl_in="reward", **settings))
    assert [float(c.advantages[0]) for c in groups[0].completions] == pytest.approx([0.9, -0.9])
    assert metrics["kl_penalty"] == pytest.approx(0.05)
    assert first_advantages(config(kl_in="loss", **settings), group(drifted, stayed)) == [[1.0, -1.0]]
    # Where there are several updates, by the policy before the first of them.
    moved = replace(drifted, old_logprobs=np.full(2, -0.5, np.float32))
    assert first_advantages(config(kl_in="reward", **settings), group(moved, stayed)) == [[1.0, -1.0]]


def test_penalties_are_those_of_scored_completions() -> None:
    """The mean reward less the mean penalties is the mean of what advantages are computed from."""
    both = group(*(completion(n, reward=r, ref_logprobs=np.full(n, -0.5)) for n, r in ((6, 1.0), (8, None))))
    taken = config(overlong=0.5, beta=0.1, kl="k1", kl_in="reward")
    metrics = credit([both], taken)[1]
    assert (metrics["overlong_penalty"], metrics["kl_penalty"]) == pytest.approx((0.2, 0.1 * 6 * 0.5))
    metrics = credit([group(both.completions[1])], taken)[1]
    assert (metrics["overlong_penalty"], metrics["kl_penalty"]) == (0.0, 0.0)


def test_only_tokens_of_a_completion_count_in_the_std_of_a_batch() -> None:
    # The critic expects 0. Two tokens of advantage 1 and five of 0: mean 2/7, squares 10/7, sample variance 10/42.
    pair = [completion(length, reward, values=np.zeros(length, np.float32)) for length, reward in ((2, 1.0), (5, 0.0))]
    settings = config(baseline="value", scale="batch_std", std="sample", std_eps=0.0)
    [done] = credit([group(*pair)], replace(settings, critic=Critic(gamma=1.0, lam=1.0)))[0]
    std = math.sqrt(10 / 42)
    for credited, expected in zip(done.completions, ([5 / 7 / std] * 2, [-2 / 7 / std] * 5), strict=True):
        assert credited.advantages.tolist() == pytest.approx(expected)


def test_parts_normalised_before_they_are_summed() -> None:
    rows = [{"correct": 1.0, "format": 0.0}, {"correct": 0.0, "format": 0.1}, {"correct": 0.0, "format": 0.0}]
    three = group(*(completion(reward=sum(parts.values()), parts=parts) for parts in rows))
    [[first, second, third]] = first_advantages(config(parts="normalise", scale="group_std"), three)
    assert first == pytest.approx(second, abs=0.01)
    assert third < -1
    [[first, second, _]] = first_advantages(config(scale="group_std"), three)
    assert first > second + 1
    # The length is a part like any other: alone it decides, here by its sign.
    even = group(completion(9, 1.0), completion(10, 1.0))
    [[short, long]] = first_advantages(config(parts="normalise", scale="group_std", overlong=0.2), even)
    assert short == -long > 0.5


def test_unscored_completions_stay_out_of_it() -> None:
    for loss in ({}, {"parts": "normalise", "scale": "group_std"}, {"credit": "process"}):
        scored = [replace(completion(reward=r), steps=((1, r),)) for r in (1.0, 0.0)]
        nothing = replace(completion(reward=None, parts={"correct": None}), steps=((1, 9.0),))
        alone, beside = (first_advantages(config(**loss), g) for g in (group(*scored), group(*scored, nothing)))
        assert beside[0] == [*alone[0], 0.0]


def test_steps_of_a_worked_sum() -> None:
    """Text to marks, marks to tokens, rewards to advantages: 37+85+46 has the work (18;16)."""
    task, problem = Arithmetic("easy"), Problem("p", "37+85+46=", "168")

    def answered(text: str) -> Completion:
        tokens = np.array([*map(ord, text), 0])
        return Completion(text, tokens, np.zeros(len(tokens)), "stop")

    groups = [Group(problem, np.array([1]), (answered("(18;16)168"), answered("(18;17)178")), 0)]
    decode = lambda rows: ["".join(chr(token) for token in row if token) for row in rows]  # noqa: E731
    [marked] = score_steps(task, Scorer(task).score(groups), decode)
    # Characters: ( 1 8 ; 1 6 ) 1 6 8 end. Steps end with ";" (3), ")" (6) and the end token (10).
    assert [c.steps for c in marked.completions] == [
        ((3, 1.0), (6, 1.0), (10, 1.0)),
        ((3, 1.0), (6, 0.0), (10, 0.0)),
    ]
    # Step rewards 1, 1, 1, 1, 0, 0: mean 2/3, so 1/3 and −2/3 undivided; each token has the sum of those to come.
    [done], metrics = credit([marked], config(credit="process"))
    right, wrong = (c.advantages.tolist() for c in done.completions)
    assert right == pytest.approx([1.0] * 4 + [2 / 3] * 3 + [1 / 3] * 4, abs=1e-6)
    assert wrong == pytest.approx([-1.0] * 4 + [-4 / 3] * 3 + [-2 / 3] * 4, abs=1e-6)
    assert metrics["reward_mean"] == 0.5
    # By outcome alone: ½ and −½ on every token, the right first step of the second completion included.
    [done], _ = credit([marked], config(credit="outcome"))
    assert [set(c.advantages.tolist()) for c in done.completions] == [{0.5}, {-0.5}]


def test_a_task_without_steps_is_refused() -> None:
    class Plain:
        name = "plain"

    with pytest.raises(
        GrpoError,
        match=r'"process" needs a task with the method steps, or turn_rewards for episodes; task plain has neither',
    ):
        check_steps(Plain(), Episodes())  # type: ignore[arg-type]
    check_steps(Plain(), Episodes(env="maze.py:Maze"))  # type: ignore[arg-type]


def episode(turns: str, *read: str, reward: float | None = 0.0, rewards: tuple[float, ...] = ()) -> Completion:
    """An episode whose turns, words of `turns`, sampled a token per letter, and which read a text after each."""
    words = turns.split()
    ends = np.cumsum([len(word) for word in words]).tolist()
    seen = (Observation(end, np.array([7, 7, 7]), text) for end, text in zip(ends, read, strict=False))
    done = completion(ends[-1], reward, turns=tuple(words), observations=tuple(seen))
    return replace(done, steps=tuple((end - 1, each) for end, each in zip(ends, rewards, strict=False)))


def test_turns_of_an_episode_are_its_steps() -> None:
    """Rewards of turns 1, 0 and 0, 2: mean 3/4. Sums of the rewards to come: 0.25 − 0.75, … over own tokens only."""
    both = group(
        episode("ab c", "read", reward=1.0, rewards=(1.0, 0.0)),
        episode("a bcd", "read", reward=2.0, rewards=(0.0, 2.0)),
    )
    kept = score_steps(Arithmetic("easy"), [both], decode=None)  # type: ignore[arg-type]
    [credited] = credit(kept, config(credit="process"))[0]
    assert [c.advantages.tolist() for c in credited.completions] == [
        pytest.approx([0.25 - 0.75, 0.25 - 0.75, -0.75]),
        pytest.approx([-0.75 + 1.25, 1.25, 1.25, 1.25]),
    ]


class Turns:
    name = "turns"
    given: tuple[object, ...] = (0.5, 1)

    def turn_rewards(self, problem: Problem, turns: Sequence[str]) -> Sequence[object]:
        return self.given


def test_a_task_rewards_turns() -> None:
    task, done = Turns(), episode("ab cde", "read", reward=1.0)
    check_steps(task, Episodes(tools="t.py:add"))  # type: ignore[arg-type]
    [rewarded] = reward_turns(task, [group(done, completion(2))])  # type: ignore[arg-type]
    assert [c.steps for c in rewarded.completions] == [((1, 0.5), (4, 1.0)), ()]
    assert turn_rewards(rewarded.completions[0], turns_config()) == [0.5, 0.5]
    for task.given, message in (
        ((1.0,), "task turns, problem p: turn_rewards returned 1 rewards for 2 turns; return one for each"),
        ((1.0, math.nan), "task turns, problem p: turn reward nan is not a finite number"),
    ):
        with pytest.raises(GrpoError, match=message):
            reward_turns(task, [group(done)])  # type: ignore[arg-type]


def test_turns_without_rewards_have_no_process_credit() -> None:
    class Answers(Arithmetic):
        def reply(self, problem: Problem, turns: Sequence[str]) -> None: ...

    for task, settings in ((Answers("easy"), Episodes()), (Arithmetic("easy"), Episodes(tools="t.py:add"))):
        with pytest.raises(GrpoError, match=r'field loss.credit: "process" needs rewards of turns, and nothing gives'):
            check_steps(task, settings)


def test_with_process_credit_hanging_is_no_better_than_losing() -> None:
    """The win rewards its second turn with 2; the two that lost or hung have no rewards of turns: 0, 0. The mean of six
    is 1/3; the first turns get 0 − 1/3 + 2 − 1/3 and twice 0 − 2/3. An unscored one takes no part."""
    won = episode("a b", "read", reward=2.0, rewards=(0.0, 2.0))
    lost = episode("a b", "read", reward=0.0)
    hung = replace(lost, fault="timeout")
    broken = replace(lost, fault="failure", reward=None)
    [scored] = score_steps(Arithmetic("easy"), [group(won, lost, hung, broken)], decode=None)  # type: ignore[arg-type]
    [credited] = credit([scored], config(credit="process"))[0]
    assert [c.advantages.tolist() for c in credited.completions] == [
        pytest.approx([4 / 3, 5 / 3]),
        *[pytest.approx([-2 / 3, -1 / 3])] * 2,
        [0.0, 0.0],
    ]
    [faulty] = score_steps(Turns(), [group(hung, broken)], decode=None)  # type: ignore[arg-type]
    assert [c.steps for c in faulty.completions] == [((0, 0.0), (1, 0.0)), ()], "the task does not reward their turns"


def turns_config(**loss) -> Config:
    return config(turn_weight=1.0, turn_gamma=0.5, **loss)


def test_turns_in_the_same_state_are_compared() -> None:
    """Rewards 1, 0 and 0: 2/3, −1/3, −1/3. The first turns return 1/2, 0, 0: 1/3, −1/6, −1/6. The second turns of the
    first two have read the same, though they said other things: 1/2, −1/2."""
    three = group(
        episode("ab c", "4042", reward=1.0), episode("x yz", "4042", reward=0.0), episode("a b", "17", reward=0.0)
    )
    groups, metrics = credit([three], turns_config())
    assert [c.advantages.tolist() for c in groups[0].completions] == [
        pytest.approx([1, 1, 2 / 3 + 1 / 2]),
        pytest.approx([-1 / 2, -1 / 3 - 1 / 2, -1 / 3 - 1 / 2]),
        pytest.approx([-1 / 2, -1 / 3]),
    ]
    assert metrics["compared_turns"] == pytest.approx(5 / 6)
    assert all(c.advantages.dtype == np.float32 for c in groups[0].completions)


def test_a_text_read_before_the_first_turn_and_one_after_the_last() -> None:
    """Openings tell first turns apart; an environment's last words belong to no turn."""
    opening = Observation(0, np.array([7]), "cave")
    first = replace(episode("ab", reward=1.0), observations=(opening, Observation(2, np.array([], int), "bye")))
    assert (first.turn_ends, states_of(first)) == ([2], [("cave",)])
    groups, metrics = credit([group(first, episode("ab", reward=0.0))], turns_config())
    assert [c.advantages.tolist() for c in groups[0].completions] == [[0.5, 0.5], [-0.5, -0.5]]
    assert metrics["compared_turns"] == 0


def test_rewards_of_turns_add_up_to_the_reward() -> None:
    done = episode("a b c", "r", "s", reward=2.0, rewards=(0.25, 0.0, 0.5))
    assert turn_rewards(done, turns_config()) == [0.25, 0.0, 1.75]
    assert turn_rewards(episode("a b", "r", reward=1.0), turns_config()) == [0.0, 1.0]
    # The length penalty is part of the reward. 9 tokens sampled and 3 read, with room for 16: half of the last half.
    half = turns_config(max_new_tokens=16, overlong=0.5)
    assert turn_rewards(episode("abcd abcde", "r", reward=1.0), half) == [0.0, 0.5]


def test_completions_of_one_turn_get_twice_their_advantage() -> None:
    rows = group(*(completion(3, reward) for reward in (1.0, 0.0, 0.0, None)))
    for scale in ("group_std", "none"):
        once, twice = (credit([rows], each(scale=scale))[0][0].completions for each in (config, turns_config))
        for before, after in zip(once, twice, strict=True):
            assert after.advantages.tolist() == pytest.approx((2 * before.advantages).tolist(), abs=1e-6)
    assert not credit([group(completion(2, None))], turns_config())[0][0].completions[0].advantages.any()


def value_config(**changes) -> Config:
    loss = {"baseline": "value", "scale": "none", "beta": 0.0} | changes
    return Config(loss=Loss(**loss), critic=Critic(gamma=1.0, lam=0.5))


def test_values_as_baseline() -> None:
    # Reward 1 after the second token, V = 0.5 and 0.25: δ = −0.25, 0.75; A = −0.25 + 0.5·0.75 = 0.125, 0.75.
    done = replace(completion(reward=1.0), values=np.array([0.5, 0.25], np.float32))
    groups, metrics = credit([group(done)], value_config())
    [credited] = groups[0].completions
    assert credited.advantages.tolist() == pytest.approx([0.125, 0.75])
    assert credited.returns.tolist() == pytest.approx([0.625, 1.0])
    assert metrics["value_mean"] == pytest.approx(0.375)
    # Returns 0.625, 1 and errors 0.125, 0.75: 1 − var 0.1953125 / var 0.0703125.
    assert metrics["explained_variance"] == pytest.approx(1 - 0.1953125 / 0.0703125)


def test_every_token_pays_its_own_kl_and_steps_pay_where_they_end() -> None:
    done = replace(
        completion(3, reward=1.0),
        values=np.zeros(3, np.float32),
        ref_logprobs=np.array([-0.5, 0.0, -1.0], np.float32),
        steps=((0, 0.5), (2, 2.0)),
    )
    # λ = 0.5 and V = 0: A_t = r_t + A_{t+1} / 2. Rewards −0.05, 0, 1 − 0.1 = 0.9.
    pays = value_config(beta=0.1, kl="k1", kl_in="reward")
    [[credited]] = [g.completions for g in credit([group(done)], pays)[0]]
    assert credited.advantages.tolist() == pytest.approx([-0.05 + 0.225, 0.45, 0.9])
    # Steps: 0.5 − 0.05, 0, 2 − 0.1.
    by_step = replace(pays, loss=replace(pays.loss, credit="process"))
    [[credited]] = [g.completions for g in credit([group(done)], by_step)[0]]
    assert credited.advantages.tolist() == pytest.approx([0.45 + 0.475, 0.95, 1.9])


def test_advantages_over_values_are_scaled_over_all_tokens_of_the_step() -> None:
    rewards = (1.0, 0.0, 0.5)
    values = [np.array([0.1 * i, -0.2], np.float32) for i in range(3)]
    made = [replace(completion(reward=r), values=v) for r, v in zip(rewards, values, strict=True)]
    unscored = replace(completion(reward=None), values=np.full(2, 7.0, np.float32))
    groups, _ = credit([group(*made, unscored)], value_config(scale="batch_std"))
    tokens = np.concatenate([c.advantages for c in groups[0].completions[:3]])
    assert tokens.mean() == pytest.approx(0.0, abs=1e-6)
    assert tokens.std(ddof=1) == pytest.approx(1.0, abs=1e-3)
    assert groups[0].completions[3].advantages.tolist() == [0.0, 0.0]


def test_the_kind_of_standard_deviation_reaches_every_way_of_crediting() -> None:
    """Of two rewards 1 and 0 the sample std is √½, the population std ½."""
    parts = [{"correct": 1.0}, {"correct": 0.0}]
    made = [replace(completion(reward=p["correct"], parts=p), steps=((1, p["correct"]),)) for p in parts]
    for kind, deviation in (("sample", math.sqrt(0.5)), ("population", 0.5)):
        std = {"std": kind, "std_eps": 0.1}
        expected = 0.5 / (deviation + 0.1)
        for loss in ({}, {"baseline": "batch", "scale": "batch_std"}, {"credit": "process"}):
            found = first_advantages(config(**{"scale": "group_std"} | loss | std), group(*made))
            assert found == [pytest.approx([expected, -expected])]
        # Normalised again over the batch: ±z with std z√2 (sample) or z (population).
        twice = expected / (expected * 2 * deviation + 0.1)
        found = first_advantages(config(scale="group_std", parts="normalise", **std), group(*made))
        assert found == [pytest.approx([twice, -twice])]
    # A critic's advantages 0.5 and −0.5, each for one token.
    values = [replace(completion(1, reward=r), values=np.full(1, 0.5, np.float32)) for r in (1.0, 0.0)]
    found = first_advantages(value_config(scale="batch_std", std="population", std_eps=0.1), group(*values))
    assert found == [pytest.approx([0.5 / 0.6, -0.5 / 0.6])]


@pytest.mark.parametrize("size", [1e15, 1e18, 1.8e19])
@pytest.mark.parametrize("scale", ["group_std", "batch_std"])
def test_rewards_near_the_limit_of_float32_keep_their_signal(size: float, scale: str) -> None:
    """±size, 400 completions: in float32 the sum of the squares overflows. The std is size · √(400/399), so every
    advantage is ±√(399/400)."""
    large = group(*(completion(reward=size * (-1) ** i) for i in range(400)))
    [advantages] = first_advantages(config(scale=scale), large)
    assert advantages == pytest.approx([math.sqrt(399 / 400) * (-1) ** i for i in range(400)], rel=1e-6)
    metrics = credit([large], config(scale=scale))[1]
    assert metrics["reward_std"] == pytest.approx(size * math.sqrt(400 / 399), rel=1e-6)
    assert metrics["zero_signal_groups"] == 0.0


def test_parts_near_the_limit_of_float32_are_normalised_too() -> None:
    rewards = [{"huge": 1.8e19 * sign, "small": 0.0} for sign in (1, -1)]
    [advantages] = first_advantages(
        config(scale="group_std", parts="normalise"), group(*(completion(reward=p["huge"], parts=p) for p in rewards))
    )
    assert advantages == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], rel=1e-3)
