"""Reports of runs: accuracies with their intervals, examples, findings, times; and the list of runs."""

from __future__ import annotations

import io
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo.cli.terminal.episode import in_one_line
from grpo.cli.terminal.line import PLAIN_WIDTH, printable, write_line
from grpo.record.checkpoints import Checkpoints
from grpo.record.diagnosis import KINDS, diagnose, explained
from grpo.record.ranks import Ranks
from grpo.tasks.handed_over import PREFIX
from grpo.tasks.traits import label_of, trait_metrics

if TYPE_CHECKING:
    from grpo.record.store import Run

PHASES = ("rollout", "reward", "update", "record")
LISTED = ("name", "status", "model", "task", "algorithm", "steps", "reward_mean", "created")
UNLIMITED = 1000


def settings_line(run: Run) -> str:
    """Model, task, algorithm and batch in a few words."""
    config = run.config
    if run.kind == "sft":
        return printable(f"{config['model']} · {config.get('task') or Path(config['data']).name} · sft", 60)
    batch = f"{config['prompts_per_step']}×{config['group_size']}"
    return printable(f"{config['model']} · {config['task']} · {config['algorithm']} · {batch}", 60)


def change(rows: Sequence[Mapping[str, Any]], form: str) -> str:
    """The first row and, where there are more, the last, each written as `form` says."""
    ends = [rows[0], rows[-1]] if len(rows) > 1 else rows
    return " → ".join(form.format(**row) for row in ends)


def accuracy_change(evals: Sequence[Mapping[str, Any]], kind: str = "") -> str:
    """`35.2% [31–39] → 92.0% [89–94]`: held-out accuracy with its 95% interval; kind "greedy_" for the greedy one."""
    names = (f"{kind}accuracy", f"{kind}low", f"{kind}high")
    judged = [row for row in evals if row.get(names[0]) is not None]
    values = [{"share": row[names[0]], "low": 100 * row[names[1]], "high": 100 * row[names[2]]} for row in judged]
    return change(values, "{share:.1%} [{low:.0f}–{high:.0f}]") if values else ""


def headline(evals: Sequence[Mapping[str, Any]]) -> str:
    """Held-out accuracy, or the mean reward of a run without accuracy."""
    rewards = [row for row in evals if row.get("reward_mean") is not None]
    return accuracy_change(evals) or (f"reward {change(rewards, '{reward_mean:.3f}')}" if rewards else "")


def eval_changes(evals: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """From the first evaluation to the last: accuracy of sampled and greedy completions, the mean reward where it
    differs from accuracy, traits, turns and tool calls of episodes, length."""
    kinds = {"sampled": accuracy_change(evals), "greedy": accuracy_change(evals, "greedy_")}
    changes = {label: text for label, text in kinds.items() if text}
    rewards = [row for row in evals if row.get("reward_mean") is not None]
    if any(row.get("accuracy") is None or abs(row["reward_mean"] - row["accuracy"]) > 1e-6 for row in rewards):
        changes["reward"] = change(rewards, "{reward_mean:.3f}")
    for metric in trait_metrics(evals[-1]):
        measured = [{"share": row[metric]} for row in evals if row.get(metric) is not None]
        changes[label_of(metric)] = change(measured, "{share:.0%}")
    played = [row for row in evals if row.get("turns_mean") is not None]
    if played:
        changes["turns"] = change(played, "{turns_mean:.1f}")
    if any(row["calls"] for row in played):
        changes["calls"] = change(played, "{calls:.2f}")
    return changes | {"length": f"{change(evals, '{length_mean:.1f}')} tokens"}


def result(run: Run, width: int) -> list[str]:
    """The run before and after training, examples, findings, seconds by phase, its folder and the next commands."""
    summary = run.summary()
    title = f"{run.name} {summary['status']} after {summary['steps']} steps ({settings_line(run)})"
    why = [_labelled("reason", printable(summary["failure"], 500))] if summary["failure"] else []
    paragraphs = [[title, *why], _measured(run), *_examples(run, width), _findings(run), _next_commands(run, summary)]
    lines = [line for paragraph in paragraphs if paragraph for line in ["", *paragraph]]
    return lines[1:]


def short_result(run: Run) -> list[str]:
    """The result in three lines."""
    summary, evals, losses = run.summary(), run.evals(), _losses(run)
    lines = [f"{run.name} {summary['status']} after {summary['steps']} steps"]
    if evals:
        greedy = accuracy_change(evals, "greedy_")
        lines.append(f"held out {headline(evals)}{f', greedy {greedy}' if greedy else ''}")
    elif losses:
        lines.append(f"loss {losses}")
    resume = f"; resume: {_resume_command(run)}" if _can_resume(run, summary["status"]) else ""
    return [*lines, f"{printable(str(run.path), 500)}{resume}"]


def _measured(run: Run) -> list[str]:
    evals, losses = run.evals(), _losses(run)
    lines = [_labelled("loss", losses)] if losses else []
    if evals:
        after = f"{'before → ' if len(evals) > 1 else ''}after {evals[-1]['step']} steps"
        interval = "   [95% interval]" if accuracy_change(evals) else ""
        lines.append(_labelled("held out", f"{after}{interval}"))
        lines += [_labelled(label, text) for label, text in eval_changes(evals).items()]
    return lines


def _losses(run: Run) -> str:
    losses = [{"loss": loss} for _, loss in run.series("sft_loss")]
    return change(losses, "{loss:.3f}") if losses else ""


def _labelled(label: str, text: str) -> str:
    return f"{label:<10} {text}"


def _examples(run: Run, width: int) -> list[list[str]]:
    """Two pinned problems before and after: those that gained the most right answers."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for probe in run.probes():
        by_step.setdefault(probe["step"], []).append(probe)
    if not by_step:
        return []
    pairs = zip(by_step[min(by_step)], by_step[max(by_step)], strict=False)
    examples = []
    for before, after in sorted(pairs, key=lambda pair: _outcome(pair[0])[0] - _outcome(pair[1])[0])[:2]:
        gold = f"   answer {printable(before['answer'], 18)}" if before["answer"] else ""
        lines = [printable(before["prompt"], max(10, width - 30)) + gold]
        for label, probe in (("before", before), ("after", after))[: len(by_step)]:
            texts = Counter(in_one_line(sample["text"], sample.get("turns", ())) for sample in probe["samples"])
            [(text, count)] = texts.most_common(1)
            outcome = f"{_outcome(probe)[1]}   {f'×{count} ' if count > 1 else ''}"
            lines.append(_labelled(label, outcome + printable(text, max(10, width - 11 - len(outcome)))))
        examples.append(lines)
    return examples


def _findings(run: Run) -> list[str]:
    """Findings as the record stands, probable causes first; then earlier ones that these do not explain."""
    now = diagnose(run)
    kinds = [finding.kind for finding in now]
    earlier = {
        row["kind"]: row["text"]
        for row in run.findings()
        if row["kind"] in KINDS and row["kind"] not in kinds and not explained(row["kind"], kinds)
    }
    texts = [f"{'  ' if finding.cause else ''}{finding.text}" for finding in now] + [*earlier.values()]
    return [_labelled("" if i else "findings", printable(text, 500)) for i, text in enumerate(texts)]


def _outcome(probe: Mapping[str, Any]) -> tuple[float, str]:
    """How many samples are correct, or their mean reward where correctness is unknown; and the same in words."""
    samples = probe["samples"]
    if all(sample["correct"] is None for sample in samples):
        reward = sum(sample["reward"] or 0.0 for sample in samples) / len(samples)
        return reward, f"reward {reward:.2f}"
    right = sum(bool(sample["correct"]) for sample in samples)
    return right, f"{right} of {len(samples)} right"


def _next_commands(run: Run, summary: Mapping[str, Any]) -> list[str]:
    """Seconds by phase, memory, the run's folder, and the next commands."""
    lines, spans = [], summary["spans"]
    if spans:
        in_order = sorted(spans, key=lambda name: PHASES.index(name) if name in PHASES else len(PHASES))
        phases = ", ".join(f"{name} {duration(spans[name])}" for name in in_order)
        lines.append(_labelled("training", f"{duration(summary['seconds'])}: {phases}"))
    if ranks := _ranks(run):
        lines.append(_labelled("ranks", ranks))
    if memory := _memory(run):
        lines.append(_labelled("memory", memory))
    elsewhere = "" if str(run.path.parent) == "runs" else f" --runs {shlex.quote(str(run.path.parent))}"
    lines.append(_labelled("run", printable(str(run.path), 500)))
    grpo = _program()
    lines.append(_labelled("next", f"{grpo} lab{elsewhere}   see why, in the browser"))
    lines.append(_labelled("", f"{grpo} runs {run.name}{elsewhere}"))
    if Checkpoints(run.path).newest():
        if not _made_in_python(run):
            prompt = _quoted_prompt(run) or (' "PROMPT"' if run.kind == "sft" else "")
            lines.append(_labelled("", f"{grpo} sample {run.name}{prompt} -n 8{elsewhere}"))
        lines.append(_labelled("", f"{grpo} export {run.name} my-model{elsewhere}"))
    if _can_resume(run, summary["status"]):
        lines.append(_labelled("resume", _resume_command(run)))
    return lines


def _ranks(run: Run) -> str:
    """Ranks and their idle time over the run; empty where there is one."""
    ranks = Ranks.of(run)
    shares = ranks.idle(run.metrics()) if ranks else []
    return printable(f"{ranks}{f'; {ranks.idle_text(shares)}' if shares else ''}", 500) if ranks else ""


def _memory(run: Run) -> str:
    """Peak memory, and the prediction made before the model was loaded."""
    peaks, about = run.series("peak_memory"), run.meta("memory")
    if not peaks or not about:
        return ""
    on_cpu = about["device"] == "cpu"
    measured = f"{max(value for _, value in peaks) / 2**30:.2f} GiB at peak{', the program included' if on_cpu else ''}"
    predicted = about["predicted"]
    return f"{measured}; predicted {predicted / 2**30:.2f} GiB of tensors" if predicted else measured


def _quoted_prompt(run: Run) -> str:
    """A pinned problem's prompt as a word for the shell. Empty where none is short and plain, and with an environment,
    which would add its text to the prompt again: a held-out problem is sampled then."""
    if run.config.get("episodes", {}).get("env"):
        return ""
    prompts = (probe["prompt"] for probe in run.probes())
    plain = (text for text in prompts if len(text) <= 60 and text.isprintable() and not text.startswith("-"))
    prompt = next(plain, "")
    # Within double quotes a shell would still expand these.
    quoted = shlex.quote(prompt) if set(prompt) & set('"$`\\!') else f'"{prompt}"'
    return f" {quoted}" if prompt else ""


def _can_resume(run: Run, status: str) -> bool:
    return status in ("stopped", "failed", "killed")


def _made_in_python(run: Run) -> bool:
    """Whether task, data, reward or tools were Python objects, which the record names but does not store."""
    return any(PREFIX in str(run.config.get(field, "")) for field in ("task", "data", "reward", "episodes"))


def _resume_command(run: Run) -> str:
    """The command that last started the run, with its name and --resume; … stands for settings made in Python."""
    if _made_in_python(run):
        function, config = ("sft", "SftConfig") if run.kind == "sft" else ("train", "Config")
        return f'grpo.{function}(grpo.{config}(…, run="{run.name}", resume=True), …) with the same Python objects'
    _, *words = run.meta("command")
    command = "sft" if run.kind == "sft" else "train"
    if words[:1] != [command]:
        return f"{_program()} {command} … --run {run.name} --resume"
    # Only the word after --run is the run's name: a model may have the same name.
    typed = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if before != "--run" and word not in ("--resume", "--run") and not word.startswith("--run=")
    ]
    return shlex.join([_program(), *typed, "--run", run.name, "--resume"])


def _program() -> str:
    """How this program is called: `make train` starts a grpo that is not on the path."""
    return sys.argv[0] if Path(sys.argv[0]).name == "grpo" and not shutil.which("grpo") else "grpo"


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else clock(seconds)


def clock(seconds: float) -> str:
    """
    >>> clock(65.2), clock(7265)
    ('1:05', '2:01:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def print_run(run: Run) -> None:
    write_line("\n".join(result(run, PLAIN_WIDTH)))


def print_runs(rows: Sequence[Mapping[str, Any]], folder: str) -> None:
    none = [f"no runs in {printable(folder, 200)} yet; make one with: grpo train"]
    write_line("\n".join(table_of_runs(rows) if rows else none))


def table_of_runs(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per run, from the rows of `grpo.record.store.list_runs`. A narrow terminal wraps lines; none is cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    longest = max(cell_len(row["name"]) for row in rows)
    for column in LISTED:
        table.add_column(column.replace("_mean", ""), no_wrap=True)
    unreadable = []
    for row in rows:
        if row["status"] == "unreadable":
            unreadable.append(f"{row['name']:<{longest}}  {printable('unreadable: ' + row['problem'], 90)}")
            continue
        reward = "" if row["reward_mean"] is None else f"{row['reward_mean']:.2f}"
        shown = {**row, "reward_mean": reward, "created": str(row["created"])[:16].replace("T", " ")}
        cells = ("" if shown[column] is None else printable(str(shown[column]), 40) for column in LISTED)
        table.add_row(*map(Text, cells))
    console = Console(file=io.StringIO(), width=UNLIMITED, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [*(line.rstrip() for line in captured.get().splitlines()), *unreadable]
