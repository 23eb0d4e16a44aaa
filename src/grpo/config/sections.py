"""The sections of the config. Attribute docstrings are the `--help`; limits of single fields are in rules.py."""

import json
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from grpo.config.leaf import Json, Text, json_text
from grpo.config.other_names import Named


class Section(Named):
    """A section that knows which of its fields were set."""

    def __new__(cls, **given: Any) -> Self:
        section = super().__new__(cls, **given)
        object.__setattr__(section, "_fields_set", frozenset(given))
        return section

    @property
    def fields_set(self) -> frozenset[str]:
        """Names of the fields that were passed to the constructor. `dataclasses.replace` passes all of them."""
        names: frozenset[str] = self.__dict__["_fields_set"]
        return names


@dataclass(frozen=True, kw_only=True)
class Loss(Section):
    """The objective. `Config` takes every field that is not set here from the preset named by `algorithm`: with
    Config(algorithm="dapo", loss=Loss(beta=0.1)) the run has dapo's settings and beta 0.1."""

    baseline: Literal["mean", "leave_one_out", "batch", "length_weighted", "value"] = "mean"
    """Subtracted from the reward: the group's mean (mean), the mean of the other completions (leave_one_out), the mean
    weighted by length (length_weighted), the batch's mean (batch), or a critic's value of each token (value)."""
    scale: Literal["group_std", "batch_std", "none"] = "group_std"
    """Divisor of the centred reward: standard deviation of the group, of the batch, or none."""
    std: Literal["sample", "population"] = "sample"
    """Standard deviation: sample divides by n - 1, population by n."""
    std_eps: float = 1e-4
    """Added to the standard deviation."""
    credit: Literal["outcome", "process"] = "outcome"
    """Reward per completion (outcome), or per step of it (process): steps that the task marks, or turns of an episode
    that are rewarded."""
    turn_weight: float = 0.0
    """Weight of a turn's advantage over other turns of its group in the same state (GiGPO); 0: off."""
    turn_gamma: float = 0.95
    """Discount per turn of an episode's rewards, with turn_weight."""
    parts: Literal["sum", "normalise"] = "sum"
    """Several rewards: sum them, or normalise each in its group first (GDPO)."""
    weights: str = ""
    """Weights of the reward's parts, such as correct=1,format=0.2; other parts have weight 1."""
    overlong: float = 0.0
    """Length penalty that rises from 0 to 1 over this last share of max_new_tokens, which counts what an episode
    reads, too; 0: off."""
    mask_truncated: bool = False
    """Leave truncated completions out of the loss: those that ended at a limit, such as max_new_tokens."""
    dynamic_sampling: float = 1.0
    """Replace groups without signal until dynamic_sampling x prompts_per_step groups were drawn; 1: off."""
    ratio: Literal["token", "sequence", "product"] = "token"
    """Policy ratio of each token, or one for the completion: the geometric mean (sequence) or the product."""
    surrogate: str = "clip"
    """Surrogate: clip (PPO), weight (CISPO), gate (SAPO), plain (REINFORCE), or your own file.py:function."""
    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    cap: float = 0.0
    """Largest ratio, for surrogate weight and, where the advantage is negative, for clip; 0: no bound."""
    gate_up: float = 1.0
    """Steepness of surrogate gate where the advantage is positive."""
    gate_down: float = 1.05
    """Steepness of surrogate gate where the advantage is negative."""
    aggregate: Literal["sequence", "token", "constant"] = "sequence"
    """sequence: mean over completions of their token means; token: mean over tokens; constant: sum over tokens divided
    by completions x max_new_tokens."""
    beta: float = 0.04
    """Weight of the KL divergence from the reference model; 0 loads no reference."""
    kl: Literal["k1", "k2", "k3", "k3_ratio"] = "k3"
    """Estimator of the KL divergence; k3_ratio is k3 times the policy ratio."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Add the KL divergence to the loss, or subtract it from the reward."""
    refresh: int = 0
    """Steps between copies of the policy to the reference; 0: the reference stays the starting model."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    correction: Literal["none", "token", "token_mask", "sequence", "sequence_mask"] = "none"
    """Importance weights for a sampler that differs from the trainer; above correction_cap they are set to it, or to 0
    (mask)."""
    correction_cap: float = 2.0
    """Largest importance weight."""

    def over(self, preset: "Loss") -> "Loss":
        """The preset's settings, overridden by the fields set here. `fields_set` stays, so that the same overrides can
        be applied to another preset.

        >>> from grpo.config.presets import PRESETS
        >>> merged = Loss(beta=0.1).over(PRESETS["dr_grpo"].settings)
        >>> merged.beta, merged.scale, merged.fields_set
        (0.1, 'none', frozenset({'beta'}))
        """
        merged = replace(preset, **{name: getattr(self, name) for name in self.fields_set})
        object.__setattr__(merged, "_fields_set", self.fields_set)
        return merged


@dataclass(frozen=True, kw_only=True)
class Optimizer(Named):
    """AdamW and its schedule."""

    epochs: int = 1
    """Passes over the completions of a step."""
    minibatches: int = 1
    """Optimizer steps per pass, each on an equal share of the groups."""
    warmup_steps: int = 10
    """Steps over which the learning rate rises from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up; linear and cosine fall to 0."""
    weight_decay: float = 0.0
    """Decoupled weight decay; multiplied by the learning rate."""
    adam_beta1: float = 0.9
    """Decay rate of the mean of the gradients."""
    adam_beta2: float = 0.99
    """Decay rate of the mean of the squared gradients."""
    grad_clip: float = 1.0
    """Largest gradient norm; a larger gradient is scaled down to it."""


@dataclass(frozen=True, kw_only=True)
class Lora(Named):
    """LoRA: train small adapter matrices and freeze the model's weights. Needs peft."""

    rank: int = 0
    """Rank of the adapters; 0: no adapters, train the whole model."""
    alpha: float = 32.0
    """The adapters' output is multiplied by alpha / rank."""
    targets: str = ""
    """Linear layers with an adapter, such as q_proj,v_proj; empty: all but the output layer."""


@dataclass(frozen=True, kw_only=True)
class Critic(Named):
    """The critic, which predicts the reward from every token on. Used only if loss.baseline is value (PPO)."""

    model: Literal["separate", "shared"] = "separate"
    """separate: a second network of the policy's size; shared: one more output of the policy network."""
    lr: float = 1e-4
    """Learning rate of a separate critic, or of a shared critic's output layer; scheduled like the policy's."""
    warmup_steps: int = 10
    """First steps, in which only the critic is trained."""
    clip: float = 0.2
    """Clip range of the value loss; 0: no clip."""
    gamma: float = 1.0
    """Discount per token."""
    lam: float = 0.95
    """Lambda of generalized advantage estimation: 1 uses only rewards, 0 only the next value."""
    weight: float = 0.5
    """Weight of a shared critic's loss in the policy's loss."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(Named):
    """Evaluation on held-out problems, which are never trained on."""

    every: int = 20
    """Steps between evaluations; 0: only before and after the run."""
    problems: int = 500
    """Number of held-out problems."""
    reward: str = ""
    """Rewards of evaluations, written as reward is; empty: those of training. Accuracy does not depend on them."""
    probes: int = 4
    """Held-out problems whose completions are recorded at every evaluation, to compare them over time."""


@dataclass(frozen=True, kw_only=True)
class Dataset(Section):
    """How rows of data become problems, in tasks that read rows: data, gsm8k, math, and your own."""

    prompt: str = ""
    """Column of the question; empty: the first of prompt, question, problem, instruction and input that exists."""
    answer: str = ""
    """Column of the gold answer; empty: the first of answer, gold, target, label, solution and output that exists;
    none: the rows have no golds, and the reward is your own."""
    template: Text = ""
    """Prompt with columns in braces, such as "Q: {question}\\nA:" ({{ is a brace; as a flag \\n is a new line, \\\\ a
    backslash); of a conversation, its last user message; empty: the task's template."""
    system_prompt: Text = ""
    """System message before the question or conversation (as a flag \\n is a new line, \\\\ a backslash)."""
    chat: bool = True
    """Apply the model's chat template, if it has one; --no-chat: plain text."""
    chat_template: str = ""
    """Chat template instead of the model's: a Jinja file, or qwen3, which ships and keeps the thinking of earlier
    turns. It is saved with the model."""
    chat_template_kwargs: Json = ""
    """Further arguments of the chat template, such as '{"enable_thinking": false}'; in Python a dictionary."""
    max_prompt_tokens: int = 0
    """Leave out rows whose prompt has more tokens; 0: off. In grpo check it needs --model."""
    subset: str = ""
    """Configuration of a Hugging Face dataset, such as main."""
    split: str = "train"
    """Split of a Hugging Face dataset or folder."""
    heldout: str = ""
    """Held-out rows: a split, a file, or a folder or dataset with a / in its name; empty: a share of the rows, chosen
    by hash."""
    heldout_share: float = 0.1
    """Share of the rows that is held out."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "chat_template_kwargs", json_text(self.chat_template_kwargs))

    @property
    def template_kwargs(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = json.loads(self.chat_template_kwargs or "{}")
        return kwargs


@dataclass(frozen=True, kw_only=True)
class Checkpoints(Named):
    """Checkpoints, from which a run resumes. Their interval is checkpoint_every, at the top level."""

    keep: int = 2
    """Newest checkpoints to keep; the best one is kept too."""
    best: str = ""
    """Held-out metric whose highest value marks the best checkpoint: accuracy, reward, the name of one of several
    rewards, or another metric of evaluations; empty: accuracy, or reward where nothing says what is correct."""
    disk_full: Literal["stop", "wait"] = "stop"
    """When the disk is full: stop with everything written so far intact, or wait for space."""
    allow_change: bool = False
    """Resume even if settings, model, problems, code or versions have changed since the run began."""


@dataclass(frozen=True, kw_only=True)
class Scoring(Named):
    """How completions are scored. The rewards themselves are reward, at the top level."""

    workers: int = 0
    """Reward worker processes of a host; 0: one per core, at most 16."""
    seconds: float = 10.0
    """Time limit of one reward call; a completion over the limit scores 0."""
    memory_gb: float = 2.0
    """Memory limit of one reward call; a completion over the limit scores 0."""
    most_failures: float = 0.1
    """Largest share of recent completions on which a reward may fail or time out; above it the run stops."""
    judge_model: str = ""
    """Model name sent to the judge; empty: the first model its server lists."""
    judge_prompt: str = ""
    """Text file with the judge's prompt, with {prompt}, {answer} and {completion}; empty: a default prompt."""
    judge_seconds: float = 60.0
    """Time limit of one judge request."""
    judge_retries: int = 3
    """Retries of a judge request after an error."""
    judge_budget: int = 100000
    """Most requests to a judge in a run, retries included."""


@dataclass(frozen=True, kw_only=True)
class Episodes(Section):
    """Several turns: tools, a task or an environment answers the model, and it goes on. What it reads is not trained.
    max_new_tokens limits all tokens of an episode, sampled and read."""

    tools: str = ""
    """Functions that the model may call, separated by commas: file.py:function or module:function, with types and a
    docstring."""
    env: str = ""
    """Environment class, one object for each completion: file.py:Class or module:Class; or an agent that takes a client
    like AsyncOpenAI, file.py:coroutine. Its rewards are the run's, and those of reward are added. Several, of which the
    column environment of a row names its own: NAME=file.py:Class,NAME=file.py:Class."""
    max_turns: int = 8
    """Most turns of the model."""
    max_turn_tokens: int = 0
    """Most tokens that the model samples in one turn; 0: no limit."""
    max_observation_tokens: int = 256
    """Most tokens that the model reads between two turns; a longer text is cut."""
    max_calls: int = 0
    """Most tool calls; 0: no limit."""
    tool_seconds: float = 10.0
    """Time limit of one tool call, or of one answer of the task or environment."""
    max_seconds: float = 0.0
    """Time limit of all answers of an episode together; 0: no limit."""


@dataclass(frozen=True, kw_only=True)
class Scale(Named):
    """Several GPUs, several hosts. Each GPU has a process, a rank. The gradient does not depend on their number."""

    gpus: int = 1
    """GPUs of this host to train on; on a CPU, processes. Under torchrun or Slurm its number of processes counts."""
    nodes: int = 1
    """Hosts that train together; start the same command on each, with --join."""
    join: str = ""
    """HOST:PORT of the first host, where the others meet it; the port is any free one."""
    join_timeout: float = 600.0
    """Seconds that a host waits for the other hosts: at the start, and after one was lost."""
    shard: Literal["auto", "none", "optimizer", "weights"] = "auto"
    """What ranks divide among them: nothing (none), the optimizer's moments (optimizer), or these and the float32
    weights (weights); auto: the first of these that fits the GPU's memory."""
    timeout: float = 1800.0
    """Seconds that ranks wait for the slowest one before the run ends."""
    restarts: int = 3
    """Times that all ranks are started again from the last checkpoint after one died."""


@dataclass(frozen=True, kw_only=True)
class System(Named):
    """The machine. Only dtype changes the numbers."""

    device: str = "auto"
    """cpu, cuda, cuda:1 and so on; auto: a GPU if there is one."""
    dtype: Literal["auto", "mixed", "half", "float32", "bfloat16"] = "auto"
    """Number format; mixed: float32 weights, bfloat16 matmuls; half: float16 matmuls, which round eight times finer but
    overflow above 65504; auto: mixed on a GPU, float32 on a CPU."""
    threads: int = 0
    """CPU threads; 0: one for a model under 5 million parameters, otherwise one per core that it may use."""
    token_budget: int = 0
    """Tokens per micro-batch; 0: as many as fit the GPU's free memory, 16384 on a CPU. Halved when memory runs out."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: a third slower, much less memory (GPU)."""
    max_concurrent_completions: int = 0
    """Most completions decoded at once; 0: as many as the KV cache holds, which takes up to 40% of the free memory."""
    runs: str = "runs"
    """Folder that holds the runs."""
    token_groups: int = 1
    """Groups per step whose tokens are recorded one by one."""
    deterministic: bool = False
    """On a GPU, use only deterministic kernels; on a CPU all are."""
    quiet: bool = False
    """Print only warnings and the result."""
    log: str = ""
    """Loggers in addition to the run's record: wandb, tensorboard, trackio, separated by commas."""
