"""The definition of every metric. docs/metrics.md is generated from this table: `python -m grpo.record.metrics`.

To add a metric: define it here; compute it in `training/loop.py` (`update`, `completion_metrics`), in
`training/credit.py`, or in `core/statistics.py` for a sum over tokens. Those of episodes are defined and computed in
`episode_metrics.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from grpo.record.episode_metrics import EPISODE_METRICS
from grpo.record.metric import NATS, SHARE, Metric
from grpo.tasks.traits import SUFFIX, TRAITS


class UnlistedMetricError(KeyError):
    """Raised for a metric without a definition."""

    def __str__(self) -> str:  # KeyError would print the message quoted
        return str(self.args[0])


METRICS: dict[str, Metric] = {
    "reward_mean": Metric(
        "Mean reward over the scored completions of the step; empty where none could be scored.",
        "the task's reward",
        "Rises, noisily; judge over tens of steps.",
    ),
    "reward_std": Metric(
        "Sample standard deviation of the reward over all scored completions of the step.",
        "the task's reward",
        "Above 0; near 0 means the task is solved, or out of reach.",
    ),
    "accuracy": Metric(
        "Share of correct completions, by the task's `is_correct`; for a task without one, by a full reward of 1 from "
        "its own check. Completions that could not be judged are left out; empty where none could.",
        SHARE,
        "Rises; between 0.1 and 0.9 there is most to learn from.",
    ),
    "unscored": Metric(
        "Share of completions without a reward, because no part applied or the checker failed; not trained on.",
        SHARE,
        "0, unless the task leaves completions unscored on purpose.",
    ),
    "timeouts": Metric(
        "Share of completions whose checker timed out and was killed; they scored 0.",
        SHARE,
        "0, or near it; a rise means that the policy learns to write completions that are slow to check.",
    ),
    "crashes": Metric(
        "Share of completions whose checker ended its process or ran out of memory or processes; they scored 0.",
        SHARE,
        "0, or near it.",
    ),
    "failures": Metric(
        "Share of completions on which a reward function raised an error; they are unscored.",
        SHARE,
        "0; the record holds the error of each completion.",
    ),
    "advantage_std": Metric(
        "Sample standard deviation of the advantages over the step's scored completions.",
        "none",
        "With loss.scale group_std: just below 1, and lower as groups lose their signal.",
    ),
    "zero_signal_groups": Metric(
        "Share of groups without signal: all their advantages are exactly 0, because their rewards are equal.",
        SHARE,
        "Below about 0.5 while there is something to learn, and near 1 once nearly all answers are right; if high "
        "before that, change the difficulty or sample more per group.",
    ),
    "compared_turns": Metric(
        "With loss.turn_weight: share of turns that began in the same state as another turn of their group.",
        SHARE,
        "Above the share of first turns, which all begin alike; at that share, only first turns are compared.",
    ),
    "groups_drawn": Metric(
        "Dynamic sampling: groups sampled in this step, including those replaced because they had no signal.",
        "count",
        "prompts_per_step while most groups have signal; at its limit (dynamic_sampling × prompts_per_step) the task "
        "is too easy or too hard.",
    ),
    "groups_kept": Metric(
        "Dynamic sampling: groups with signal, which the step trains on and records.",
        "count",
        "prompts_per_step; fewer when the limit was reached.",
    ),
    "gradient_tokens": Metric(
        "Share of all scored tokens of the step that have a non-zero advantage and are not masked; 0 without signal.",
        SHARE,
        "High; the other tokens were sampled for nothing (see zero_signal_groups).",
    ),
    "length_mean": Metric(
        "Mean number of tokens that a completion sampled, end token included.",
        "tokens",
        "Changes slowly; growth without a higher reward is padding.",
    ),
    "length_max": Metric(
        "Tokens in the longest completion of the step.",
        "tokens",
        "Below the length limit.",
    ),
    "truncated": Metric(
        "Share of completions that ended at a limit instead of by themselves: max_new_tokens, or one of the section "
        "episodes.",
        SHARE,
        "Below about 0.1; if higher, raise the limit.",
    ),
    "overlong_penalty": Metric(
        "Mean penalty of loss.overlong, subtracted from the rewards of scored completions near the length limit.",
        "the task's reward",
        "Near 0; if it grows, completions get close to the limit.",
    ),
    "kl_penalty": Metric(
        "Mean KL penalty of a scored completion, subtracted from its reward: β times the sum over its tokens.",
        "the task's reward",
        "Well below the spread of the rewards.",
    ),
    "loss": Metric(
        "The minimised loss: policy_loss + kl_loss − entropy_bonus. With one update per batch ρ is exactly 1, so "
        "policy_loss is the mean of −A. That is near 0 with loss.aggregate sequence, because A sums to 0 in a group; "
        "with token or constant, longer completions count more. Its gradient, the mean of −A·∇logp, is not 0.",
        "none",
        "With loss.aggregate sequence and one update per batch: near 0. It does not measure progress: watch "
        "reward_mean, accuracy and grad_norm.",
    ),
    "policy_loss": Metric(
        "The surrogate's part of the loss: the mean of −min(ρA, clip(ρ)A), or of another surrogate, as loss.aggregate "
        "averages it.",
        "none",
        "As loss.",
    ),
    "kl_loss": Metric(
        "The part of β·KL in the loss, as loss.aggregate averages it; empty where β is 0 or the KL is in the reward.",
        "none, 0 or more (k1 may be negative)",
        "Small beside reward differences; if it grows, the policy moves away from the reference.",
    ),
    "entropy_bonus": Metric(
        "The entropy's part of the loss, which is subtracted: loss.entropy times the entropy, as loss.aggregate "
        "averages it; empty where loss.entropy is 0.",
        "none, 0 or more",
        "Falls slowly with the entropy.",
    ),
    "kl": Metric(
        "Mean over contributing tokens of the estimate of KL(policy ‖ reference) that loss.kl names; k3, the default, "
        "is exp(ref − logp) − (ref − logp) − 1.",
        "nats per token, 0 or more (k1 may be negative)",
        "Grows slowly from 0; after a sudden rise the policy may collapse.",
    ),
    "entropy": Metric(
        "Mean over contributing tokens of the entropy of the policy's next-token distribution: −Σ p·log p.",
        "nats per token, 0 to log(vocabulary)",
        "Falls slowly, and is near 0 once nearly all answers are right; a fall to 0 before that ends exploration, a "
        "rise means that completions become random.",
    ),
    "clip_low": Metric(
        "Share of the tokens with a non-zero advantage whose gradient the lower clip removes: ρ < 1 − clip_low and "
        "A < 0.",
        SHARE,
        "0 with one update per batch; otherwise below about 0.1.",
    ),
    "clip_high": Metric(
        "Share of the tokens with a non-zero advantage whose gradient the upper clip removes: ρ > 1 + clip_high and "
        "A > 0.",
        SHARE,
        "0 with one update per batch; otherwise below about 0.1.",
    ),
    "capped": Metric(
        "Share of the tokens with a non-zero advantage whose ratio is above loss.cap, with surrogate clip only where "
        "A < 0.",
        SHARE,
        "0 with one update per batch; otherwise below about 0.05.",
    ),
    "corrected": Metric(
        "Share of the tokens with a non-zero advantage whose importance weight exp(trainer logp − sampler logp) "
        "exceeds correction_cap.",
        SHARE,
        "0 with the built-in engine; otherwise below about 0.05.",
    ),
    "ratio_min": Metric(
        "Smallest ratio ρ = exp(logp − old logp) of the contributing tokens of the step.",
        "ratio, above 0",
        "1 with one update per batch; with several, that of single tokens may be far below 1 − clip_low, since the "
        "clip limits gradients and not ratios.",
    ),
    "ratio_max": Metric(
        "Largest ratio ρ = exp(logp − old logp) of the contributing tokens of the step.",
        "ratio, above 0",
        "1 with one update per batch; otherwise below about 10.",
    ),
    "sampler_gap": Metric(
        "Mean over contributing tokens of |sampler logp − trainer logp|, before the first update on the batch.",
        NATS,
        "Below 1e-4 in float32, about 1e-2 in bfloat16; if larger, sampler and trainer disagree and ρ is wrong.",
    ),
    "grad_norm": Metric(
        "L2 norm of the whole gradient before it is clipped; the mean where a step takes several updates.",
        "none, 0 or more",
        "Steady; spikes come before a collapse, 0 means that nothing was learned.",
    ),
    "value_loss": Metric(
        "Mean over tokens of half the critic's squared error; with critic.clip, the larger of the clipped and "
        "unclipped error.",
        "the task's reward, squared",
        "Falls, then follows the policy.",
    ),
    "value_mean": Metric(
        "Mean over tokens of the critic's values before the updates.",
        "the task's reward",
        "Near the mean of the rewards still to come.",
    ),
    "explained_variance": Metric(
        "1 − var(return − value) / var(return) over tokens, before the updates: how well the critic predicts returns.",
        "share, at most 1",
        "Rises above 0 within the critic's warm-up; below 0 the critic is worse than a constant.",
    ),
    "critic_grad_norm": Metric(
        "L2 norm of the gradient of the critic's weights before it is clipped.",
        "none, 0 or more",
        "Steady.",
    ),
    "lr": Metric(
        "Learning rate of the last update of the step.",
        "none",
        "Follows its schedule.",
    ),
    "skipped_updates": Metric(
        "Optimizer steps skipped because the gradient was not finite; the run stops after three such steps in a row.",
        "count",
        "0; otherwise the learning rate is too high, or the model's numbers overflow.",
    ),
    "updates": Metric(
        "Optimizer steps taken in this step; a minibatch without a gradient takes none.",
        "count",
        "epochs × minibatches.",
    ),
    "tokens": Metric(
        "Completion tokens sampled in this step, including those of replaced groups; in supervised fine-tuning, the "
        "answer tokens trained on.",
        "tokens",
        "prompts per step × group size × length_mean; with dynamic sampling up to dynamic_sampling times that.",
    ),
    "tokens_per_second": Metric(
        "tokens divided by the seconds of the rollout, which include scoring where groups are replaced; with several "
        "ranks, all tokens by the seconds of the slowest.",
        "tokens per second",
        "Steady; it falls as completions grow.",
    ),
    "peak_memory": Metric(
        "Peak memory since the program began: of tensors on a GPU, of the whole process on a CPU; with several ranks, "
        "that of the rank with most.",
        "bytes",
        "Rises once, to about the prediction of grpo plan, and stays.",
    ),
    **{f"{name}{SUFFIX}": Metric(trait.definition, SHARE, trait.healthy) for name, trait in TRAITS.items()},
    **EPISODE_METRICS,
    "observation_wait": Metric(
        "Seconds of the step that sampling waited for tools, the task or environments to answer, without the time that "
        "it takes to make tokens of the answers; with several ranks, those of the rank that waited longest.",
        "seconds",
        "Small beside the seconds of the rollout; if not, make the tools faster or raise scoring.workers.",
    ),
    "sft_loss": Metric(
        "Supervised fine-tuning: mean of −logp over the answer tokens.",
        "nats per token, 0 or more",
        "Falls, then flattens.",
    ),
}

EVAL_METRICS: dict[str, Metric] = {
    "accuracy": Metric(
        "Share of correct completions among those sampled for the held-out problems, judged as in training; empty "
        "where none could be judged.",
        SHARE,
        "Rises, beyond its interval.",
    ),
    "low": Metric("Lower end of the 95 % interval of accuracy.", SHARE, "Compare runs by intervals."),
    "high": Metric("Upper end of the 95 % interval of accuracy.", SHARE, "Compare runs by intervals."),
    "greedy_accuracy": Metric(
        "Share of held-out problems solved by the most probable completion (temperature 0).",
        SHARE,
        "At or above accuracy; the two meet as entropy falls.",
    ),
    "greedy_low": Metric("Lower end of the 95 % interval of greedy_accuracy.", SHARE, "Compare runs by intervals."),
    "greedy_high": Metric("Upper end of the 95 % interval of greedy_accuracy.", SHARE, "Compare runs by intervals."),
    "reward_mean": Metric(
        "Mean reward of the sampled held-out completions; empty where none could be scored.",
        "the task's reward",
        "Rises; where rewards are graded it moves before accuracy does. Equals accuracy where they are 0 or 1.",
    ),
    "length_mean": Metric(
        "Mean number of tokens in a sampled held-out completion, end token included.",
        "tokens",
        "Changes slowly.",
    ),
}


PREFIXES = ("logged/", "part/", "idle/", "finish/")
"""Names that need no definition: `logged/X` is what reward functions log as X with `log_metric`, `part/X` the mean of
the reward's part X, `idle/R` the idle share of rank R, `finish/X` the share of episodes that ended for reason X."""
TIMED = ("tokens_per_second", "peak_memory", "observation_wait")


def is_timed(name: str) -> bool:
    """Whether the metric measures the machine. All others are the same when a run is repeated."""
    return name in TIMED or name.startswith("idle/")


def is_metric(name: str, listed: Mapping[str, Metric] = METRICS) -> bool:
    """Whether the name has a definition, or needs none: a task's traits are named X_share."""
    return name in listed or name in EPISODE_METRICS or name.endswith(SUFFIX) or name.startswith(PREFIXES)


def check_names(metrics: Mapping[str, float], listed: Mapping[str, Metric] = METRICS) -> None:
    """Raise on a name without a definition.

    >>> check_names({"loss": 0.0, "rhymed_share": 0.5, "logged/hits": 3.0})
    """
    unlisted = [name for name in metrics if not is_metric(name, listed)]
    if unlisted:
        raise UnlistedMetricError(
            f"unlisted metric: {', '.join(unlisted)}; define it in the table in grpo/record/metrics.py, "
            "then generate docs/metrics.md again (python -m grpo.record.metrics)"
        )


def _rows(table: Mapping[str, Metric]) -> list[str]:
    lines = ["| name | definition | unit | healthy |", "|---|---|---|---|"]
    for name, metric in table.items():
        cells = (cell.replace("|", r"\|") for cell in (metric.definition, metric.unit, metric.healthy))
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def markdown() -> str:
    """The content of docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Generated from the table in `src/grpo/record/metrics.py` by `python -m grpo.record.metrics`. Edit the table,",
        "not this page.",
        "",
        "ρ is the policy's probability of a token divided by its probability before the first update on the batch,",
        "A the token's advantage, β the KL coefficient. Contributing tokens are those of completions with a gradient:",
        "all where β, the entropy or a critic counts, otherwise those with signal. Masked completions never",
        "contribute. The healthy values are hints, not limits. A number that is not finite is recorded as empty.",
        "",
        "## Training, one row per step",
        "",
        "Step k is the k-th batch, counted from 0. A task's trait X is recorded as `X_share`. What reward functions",
        "log as X with `log_metric` is recorded as `logged/X`, averaged over the step's completions. `part/X` is the",
        "mean of the reward's part X, before its weight, over the completions that it applies to. With several ranks,",
        "`idle/R` is the share of the step that rank R waited for the others and for the network. Metrics of turns,",
        "calls and observations are recorded where completions are episodes; `finish/X` is then the share of episodes",
        "that ended for reason X: `stop` (by themselves), or a limit: `length` (tokens in all), `turn_length` (tokens",
        "of a turn), `turns`, `calls`, `seconds`.",
        "",
        *_rows(METRICS),
        "",
        "## Evaluation, one row per evaluation",
        "",
        "On held-out problems. An evaluation at step s comes after s batches; at 0, before training. Traits, logged",
        "metrics, the parts of the reward and the metrics of episodes are recorded as in training.",
        "",
        *_rows(EVAL_METRICS),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
