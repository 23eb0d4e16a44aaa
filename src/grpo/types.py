"""The data of a training step. Every stage of the loop returns new objects with more fields filled.

Axis letters, here and in all tensor code:
P problems (groups)   G completions of a group   N completions   L tokens that a completion sampled   V vocabulary
E tokens of an episode: those that a completion sampled, and those that it read in between   T packed tokens
A all sampled tokens of a batch, one after another   C width of a hidden state
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
    """One question and its gold answer.

    >>> Problem(id="train-0-3", prompt="47*86=", answer="4042").answer
    '4042'
    >>> asked = Problem("train-0-4", "What is 6 * 7?", "42", messages=chat("What is 6 * 7?", system="Be brief."))
    >>> asked.messages
    ({'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'What is 6 * 7?'})
    """

    id: str
    """Unique and stable: it keys the sampling noise, so that a problem gets the same completions in any batch. For a
    row of data it is a hash of the row, so that its place does not matter."""
    prompt: str
    """The prompt as text, for display and for models without a chat template."""
    answer: str
    """The gold answer, in the form that the task's checker reads."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The prompt as a conversation, for models with a chat template; empty for a plain-text prompt."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The other columns of the dataset row, passed to reward functions."""
    conversational: bool = False
    """Whether the row holds a conversation; reward functions then get messages, as in TRL."""
    place: str = ""
    """File and line of its row, such as rows.jsonl:17; empty for a generated problem."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of tools that its prompt describes, in place of the run's."""

    @property
    def label(self) -> str:
        """Its name in messages: the place of its row, or else its id."""
        return self.place or self.id


def chat(question: str, system: str = "") -> tuple[Mapping[str, str], ...]:
    """A question as a conversation, after an optional system message."""
    before = ({"role": "system", "content": system},) if system else ()
    return (*before, {"role": "user", "content": question})


Finish = Literal["stop", "length", "turn_length", "turns", "calls", "seconds"]
"""Why a completion ended. stop: by itself, with an end token, a stop string, or the end of its episode. The others are
limits: of tokens in all, of tokens in one turn, of turns, of tool calls, and of seconds."""
Fault = Literal["", "timeout", "crash", "failure"]


@dataclass(frozen=True)
class Call:
    """A call of a tool, as a turn of the model asked for it.

    >>> Call("calculate", '{"expression": "47*86"}', "4042").fault
    ''
    """

    name: str
    arguments: str
    """JSON; the text itself, where it could not be read as a call."""
    answer: str
    fault: Literal["", "error", "timeout", "crash"] = ""
    """error: the call raised, names no tool, or has arguments that do not fit; `answer` says which."""


@dataclass(frozen=True, eq=False)
class Observation:
    """What an episode read between two of its turns: the answers of tools, of the task, or of an environment.

    Its tokens stand beside those that the completion sampled, and have no place in any of the completion's arrays: they
    cannot be trained, and no length or denominator counts them.

    >>> Observation(after=8, tokens=np.array([4, 0, 4, 2, 17]), text="4042;").after
    8
    """

    after: int
    """Tokens that the completion had sampled before it."""
    tokens: np.ndarray
    """int64; empty where the model did not read it, such as an environment's last words."""
    text: str
    calls: tuple[Call, ...] = ()
    """The tool calls that it answers; empty where the task or an environment answered."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Values of a completion's tokens in the last update that trained on it.

    >>> Trace(logprobs=np.array([-0.1, -0.7]), entropies=np.array([0.3, 0.9]), denominator=128.0).denominator
    128.0
    """

    logprobs: np.ndarray
    """float32 [L] under the policy of that update."""
    entropies: np.ndarray
    """float32 [L]: entropy of the next-token distributions under that policy."""
    denominator: float
    """Denominator of that update's loss."""


@dataclass(frozen=True, eq=False)
class Completion:
    """One sampled completion.

    >>> done = Completion(text="42", tokens=np.array([4, 2, 19]), logprobs=np.array([-0.1, -0.7, -0.01]),
    ...                   finish="stop", parts={"correct": 1.0}, reward=1.0, traits={"worked": 0.0},
    ...                   advantages=np.array([0.93, 0.93, 0.93]))
    >>> len(done), done.reward
    (3, 1.0)
    """

    text: str
    """Decoded text, without the end token; with the stop string, if one ended it."""
    tokens: np.ndarray
    """int64 [L]; if `finish` is "stop", the last one is the end token or completes a stop string. It is trained too."""
    logprobs: np.ndarray
    """float32 [L]: the sampler's log-probability of each token, at the sampling temperature."""
    finish: Finish
    turns: tuple[str, ...] = ()
    """Text of each turn of an episode; `text` is the last of them. Empty where the completion is not an episode."""
    observations: tuple[Observation, ...] = ()
    """What the episode read between its turns, in order."""
    fault: Fault = ""
    """What went wrong in its environment; `why` says more. timeout, crash: it scores 0; failure: it stays unscored."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """Rewards by part; None if a part does not apply."""
    reward: float | None = None
    """Sum of the parts that apply; None if none does. Baseline and loss leave such a completion out."""
    correct: bool | None = None
    """Whether the answer is right, apart from the reward; None if it cannot be judged."""
    traits: Mapping[str, float] = field(default_factory=dict)
    """Properties of the text that earn no reward, such as whether the working was written out."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Columns that reward functions logged for it with `log_extra`: JSON values."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """Metrics that reward functions logged with `log_metric` in the calls that scored it."""
    why: str = ""
    """Error of its scoring: a time-out or crash (reward 0), or a failure of the reward function (unscored)."""
    ref_logprobs: np.ndarray | None = None
    """float32 [L] under the reference model; None without one."""
    old_logprobs: np.ndarray | None = None
    """float32 [L] under the policy before the first update on this batch; None with a single update."""
    steps: tuple[tuple[int, float], ...] = ()
    """(position of its last token, reward) of each step, with credit "process"."""
    values: np.ndarray | None = None
    """float32 [L]: the critic's value before each token; None without a critic."""
    returns: np.ndarray | None = None
    """float32 [L]: targets of the critic's values."""
    advantages: np.ndarray | None = None
    """float32 [L]."""
    trace: Trace | None = None
    """Token values, for the groups whose tokens are recorded."""

    def __len__(self) -> int:
        """Tokens that it sampled."""
        return len(self.tokens)

    @property
    def truncated(self) -> bool:
        """Whether a limit ended it: of tokens, turns, calls or seconds."""
        return self.finish != "stop"

    @property
    def turn_ends(self) -> list[int]:
        """Tokens that it had sampled at the end of each of its turns.

        >>> opening, answer = (Observation(after, np.array([8]), "") for after in (0, 2))
        >>> Completion("", np.array([1, 2, 3]), np.zeros(3), "stop", observations=(opening, answer)).turn_ends
        [2, 3]
        """
        return sorted({seen.after for seen in self.observations} - {0} | {len(self.tokens)})

    @property
    def sequence_length(self) -> int:
        """Tokens of `sequence`."""
        return len(self.tokens) + sum(len(seen.tokens) for seen in self.observations)

    @property
    def sequence(self) -> np.ndarray:
        """int64 [E]: the tokens that it sampled and those that it read, in order.

        >>> read = Observation(after=2, tokens=np.array([8, 9]), text="")
        >>> done = Completion("", np.array([1, 2, 3]), np.zeros(3), "stop", observations=(read,))
        >>> done.sequence.tolist(), done.sampled.tolist()
        ([1, 2, 8, 9, 3], [True, True, False, False, True])
        """
        if not self.observations:
            return self.tokens
        places = [seen.after for seen in self.observations for _ in seen.tokens]
        return np.insert(self.tokens, places, np.concatenate([seen.tokens for seen in self.observations]))

    @property
    def sampled(self) -> np.ndarray:
        """bool [E]: which tokens of `sequence` it sampled."""
        places = [seen.after for seen in self.observations for _ in seen.tokens]
        return np.insert(np.ones(len(self.tokens), dtype=bool), places, False)


def changed(completion: Completion, **fields: Any) -> Completion:
    """`dataclasses.replace` in a third of its time; a step makes thousands of these while the GPU is idle.

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
    """A problem and its completions.

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
    """Optimizer steps of the policy that sampled the completions."""
    prompt_text: str = ""
    """`prompt_tokens` decoded, special tokens included."""


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
    """Which tokens attend to which."""
    source_A: torch.Tensor
    """Index into T of the hidden state that predicts each sampled token (the shift by one)."""
    target_A: torch.Tensor
    """The sampled tokens."""
    mask_NL: torch.Tensor
    """bool: True where a completion sampled a token. Its True entries, row by row, are the axis A."""
    advantages_NL: torch.Tensor
    sampler_logp_NL: torch.Tensor
    old_logp_NL: torch.Tensor | None
    ref_logp_NL: torch.Tensor | None
    values_NL: torch.Tensor | None = None
    returns_NL: torch.Tensor | None = None
