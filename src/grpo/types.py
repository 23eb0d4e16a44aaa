"""What travels down the loop. Every stage returns new objects with one more field filled; none reaches back.

Axis letters, here and in all tensor code:
P problems (groups)   G completions of a group   N completions   L tokens of a completion   V vocabulary
T packed tokens   A answer tokens: all trained tokens of a batch, one after another   C width of a hidden state
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

    from grpo.model.attention import PackedLayout


@dataclass(frozen=True)
class Problem:
    """One question and how to check its answer.

    >>> Problem(id="train-0-3", prompt="47*86=", answer="4042").answer
    '4042'
    >>> asked = Problem("train-0-4", "What is 6 * 7?", "42", messages=chat("What is 6 * 7?", system="Be brief."))
    >>> asked.messages
    ({'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'What is 6 * 7?'})
    """

    id: str
    """Unique and stable: it keys the sampling noise, so a problem gets the same completions in any batch."""
    prompt: str
    """As text: what is shown, and what a model without a chat template reads."""
    answer: str
    """The gold answer, as the task's checker reads it."""
    messages: tuple[Mapping[str, str], ...] = ()
    """The prompt as a conversation, for models with a chat template; empty where the prompt is plain text."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What else the row of a dataset holds, by column: people's own reward functions read it."""
    conversational: bool = False
    """Whether the row itself holds a conversation: people's own reward functions are then given messages, as in TRL."""


def chat(question: str, system: str = "") -> tuple[Mapping[str, str], ...]:
    """One question as a conversation, after a system message where one is given."""
    before = ({"role": "system", "content": system},) if system else ()
    return (*before, {"role": "user", "content": question})


@dataclass(frozen=True, eq=False)
class Trace:
    """What the last update on a completion saw of its tokens.

    >>> Trace(logprobs=np.array([-0.1, -0.7]), entropies=np.array([0.3, 0.9]), denominator=128.0).denominator
    128.0
    """

    logprobs: np.ndarray
    """float32 [L] under the policy that the loss was taken of."""
    entropies: np.ndarray
    """float32 [L]: of the distributions the tokens were drawn from, under that policy."""
    denominator: float
    """What that update's summed loss was divided by."""


@dataclass(frozen=True, eq=False)
class Completion:
    """One sampled answer.

    >>> done = Completion(text="42", tokens=np.array([4, 2, 19]), logprobs=np.array([-0.1, -0.7, -0.01]),
    ...                   finish="stop", parts={"correct": 1.0}, reward=1.0, traits={"worked": 0.0},
    ...                   advantages=np.array([0.93, 0.93, 0.93]))
    >>> len(done), done.reward
    (3, 1.0)
    """

    text: str
    """Decoded, without the end token."""
    tokens: np.ndarray
    """int64 [L]; the end token is there, and trained, exactly when `finish` is "stop"."""
    logprobs: np.ndarray
    """float32 [L]: the sampler's log-probability of each token, at the sampling temperature."""
    finish: Literal["stop", "length"]
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """Rewards by part; None where a part does not apply."""
    reward: float | None = None
    """Sum of the parts that apply; None when none does: such a completion is left out of baseline and loss."""
    correct: bool | None = None
    """Whether the answer is right, apart from the reward; None where nobody can say."""
    traits: Mapping[str, float] = field(default_factory=dict)
    """What the task notices about the text but does not pay for, such as whether the work was written out."""
    why: str = ""
    """What went wrong when it was scored: a time-out or crash, for which it got 0, or a failure of the reward, which
    left it unscored."""
    ref_logprobs: np.ndarray | None = None
    """float32 [L] under the reference model, where the algorithm has one."""
    old_logprobs: np.ndarray | None = None
    """float32 [L] under the policy before its first update on this batch, where there is more than one update."""
    steps: tuple[tuple[int, float], ...] = ()
    """(place of its last token, reward) of each step of the work, where steps are rewarded."""
    values: np.ndarray | None = None
    """float32 [L]: the reward still to come that the critic expected before each token, where there is a critic."""
    returns: np.ndarray | None = None
    """float32 [L]: what the critic should have expected."""
    advantages: np.ndarray | None = None
    """float32 [L]."""
    trace: Trace | None = None
    """Of the groups whose every token is recorded, where an update trained on them."""

    def __len__(self) -> int:
        return len(self.tokens)


def changed(completion: Completion, **fields: Any) -> Completion:
    """`dataclasses.replace` in a third of its time: a step makes thousands of these while the GPU has nothing to do.

    >>> done = Completion("42", np.array([4, 2]), np.zeros(2), "stop")
    >>> changed(done, reward=1.0).reward, done.reward
    (1.0, None)
    """
    assert fields.keys() <= completion.__dict__.keys(), fields.keys()
    copy = object.__new__(Completion)
    copy.__dict__.update(completion.__dict__, **fields)
    return copy


@dataclass(frozen=True, eq=False)
class Group:
    """A problem and its completions: the unit of sampling, credit and packing.

    >>> group = Group(problem=Problem("p", "6*7=", "42"), prompt_tokens=np.array([6, 11, 7, 12]), policy_version=3,
    ...               completions=(Completion("42", np.array([4, 2, 19]), np.zeros(3), "stop", reward=1.0),
    ...                            Completion("41", np.array([4, 1, 19]), np.zeros(3), "stop", reward=0.0)))
    >>> [completion.reward for completion in group.completions]
    [1.0, 0.0]
    """

    problem: Problem
    prompt_tokens: np.ndarray
    completions: tuple[Completion, ...]
    policy_version: int
    """Optimizer steps the policy had taken when it sampled these."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One packed micro-batch: [prompt 1]…[prompt P][c1]…[cN] in a single row, no padding, each prompt once.

    >>> import torch
    >>> from grpo.model.packing import pack
    >>> completions = tuple(Completion("", np.array(t), np.zeros(2), "stop", advantages=np.full(2, a))
    ...                     for t, a in (([4, 2], 1.0), ([4, 1], -1.0)))
    >>> [batch] = pack([Group(Problem("p", "", ""), np.array([6, 7]), completions, 0)], token_budget=100)
    >>> batch.tokens_T.tolist(), batch.positions_T.tolist()
    ([6, 7, 4, 2, 4, 1], [0, 1, 2, 3, 2, 3])
    >>> batch.source_A.tolist(), batch.target_A.tolist()  # the prompt's last token predicts both first tokens
    ([1, 2, 1, 4], [4, 2, 4, 1])
    >>> batch.advantages_NL.tolist()
    [[1.0, 1.0], [-1.0, -1.0]]
    """

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    layout: PackedLayout
    """Who attends to whom."""
    source_A: torch.Tensor
    """Index into T of the hidden state that predicts each trained token: the shift, done once and only here."""
    target_A: torch.Tensor
    """The trained tokens."""
    mask_NL: torch.Tensor
    """bool: True where a completion has a token that counts; flattened row by row it lines up with A."""
    advantages_NL: torch.Tensor
    sampler_logp_NL: torch.Tensor
    old_logp_NL: torch.Tensor | None
    ref_logp_NL: torch.Tensor | None
    values_NL: torch.Tensor | None = None
    returns_NL: torch.Tensor | None = None
