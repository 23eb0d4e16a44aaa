"""Terminal views of a run while it trains: a live frame in a terminal, plain lines in a log."""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.console import Group as Stack
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grpo.cli.terminal.group import group_lines, instructive
from grpo.cli.terminal.line import FAINT, PLAIN_WIDTH, printable, write_line
from grpo.cli.terminal.report import clock, eval_changes, headline, result, settings_line, short_result
from grpo.record.events import Terminal
from grpo.record.ranks import Ranks
from grpo.tasks.traits import label_of, trait_metrics
from grpo.types import Group

if TYPE_CHECKING:
    from grpo.config import Config, SftConfig
    from grpo.record.store import Run

WIDEST_FRAME = 120
GROUP_ROWS = 8
SECONDS_BETWEEN_FRAMES = 1 / 8
SECONDS_TO_READ_A_GROUP = 2.0
IDLE_STEPS = 10
"""Last steps over which the idle time of ranks is averaged."""
SECONDS_OF_SILENCE = 5.0
"""A log gets a notice of an evaluation that takes longer."""


def pick_view(quiet: bool) -> Terminal:
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    live = sys.stdout.isatty() and not quiet and unicode and not Console().is_dumb_terminal
    return LiveView() if live else LinesView(quiet)


class LinesView(Terminal):
    """Plain lines for a log; quiet: only the result, in three lines."""

    def __init__(self, quiet: bool):
        self.quiet = quiet
        self.notice: threading.Timer | None = None

    def on_start(self, run: Run, config: Config | SftConfig, first_step: int) -> None:
        self.progress = RunProgress(run, config, first_step)
        self.printed_step, self.printed_at, self.lines_printed = first_step, time.monotonic(), 0
        begun = f"from step {first_step} of {self.progress.steps}" if first_step else f"{self.progress.steps} steps"
        self._print(f"{run.name}: {settings_line(run)}, {begun}, in {printable(str(run.path), 500)}")
        if self.progress.ranks:
            self._print(str(self.progress.ranks))

    def on_evaluation_start(self, step: int, problems: int) -> None:
        line = f"held out after {step} steps: evaluating {problems} problems …"
        self.notice = threading.Timer(SECONDS_OF_SILENCE, self._print, [line])
        self.notice.daemon = True
        self.notice.start()

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self._cancel_notice()
        self.progress.add_evaluation(step, metrics)
        changes = "  ".join(f"{label} {text}" for label, text in eval_changes(self.progress.evals).items())
        self._print(f"held out after {step} steps  {changes}")

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        self.progress.add_step(step, metrics)
        now, done = time.monotonic(), self.progress.done
        if done < min(self.printed_step + 10, self.progress.steps) and now < self.printed_at + 10:
            return
        numbers = "  ".join(
            f"{number.label} {number.text(trend.latest):>4}" for number, trend in self.progress.numbers()
        )
        idle = f"{self.progress.idle()}  " if self.progress.idle() else ""
        left = f"{clock(self.progress.seconds_left())} left"
        self._print(f"step {done:>3}/{self.progress.steps}  {numbers}  {idle}{left}")
        if groups and self.lines_printed % 5 == 0:
            lines = group_lines(instructive(groups), PLAIN_WIDTH - 2, GROUP_ROWS)
            self._print("\n".join([f"a group of step {done}", *(f"  {line.plain}".rstrip() for line in lines)]))
        self.printed_step, self.printed_at, self.lines_printed = done, now, self.lines_printed + 1

    def on_end(self, run: Run) -> None:
        self._cancel_notice()
        lines = short_result(run) if self.quiet else ["", *result(run, PLAIN_WIDTH)]
        write_line("\n".join(lines))

    def _cancel_notice(self) -> None:
        if self.notice:
            self.notice.cancel()

    def _print(self, line: str) -> None:
        if not self.quiet:
            write_line(line)


class LiveView(Terminal):
    """One frame, redrawn in place: progress, accuracy, the latest numbers with their trends, a group."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self.group: Group | None = None
        self.evaluating = 0
        """Number of problems of the evaluation that is running; 0: none is."""
        self.group_step, self.group_at, self.drawn_at = 0, -math.inf, -math.inf

    def on_start(self, run: Run, config: Config | SftConfig, first_step: int) -> None:
        self.run, self.progress = run, RunProgress(run, config, first_step)
        # A thread also redraws it once a second, so that the clock runs during long steps.
        self.lock = threading.Lock()
        self.live = Live(get_renderable=self.frame, console=self.console, refresh_per_second=1)
        self.live.start(refresh=True)
        atexit.register(self.live.stop)  # a run that ends without on_end must not leave the cursor hidden

    def on_warning(self, text: str) -> None:
        self.console.print(Text(f"grpo: {printable(text, 1000)}", style="bold"))

    def on_evaluation_start(self, step: int, problems: int) -> None:
        with self.lock:
            self.evaluating = problems

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        with self.lock:
            self.progress.add_evaluation(step, metrics)
            self.evaluating = 0
        self.live.refresh()

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        now = time.monotonic()
        with self.lock:
            self.progress.add_step(step, metrics)
            if groups and now >= self.group_at + SECONDS_TO_READ_A_GROUP:
                self.group, self.group_step, self.group_at = instructive(groups), step + 1, now
        if now >= self.drawn_at + SECONDS_BETWEEN_FRAMES:
            self.drawn_at = now
            self.live.refresh()

    def on_end(self, run: Run) -> None:
        with self.lock:
            self.group, self.evaluating = None, 0
        self.live.stop()
        atexit.unregister(self.live.stop)
        for line in ["", *result(run, self.console.width)]:
            self.console.print(Text(line), soft_wrap=True)

    def frame(self) -> Stack:
        width = min(self.console.width, WIDEST_FRAME)
        with self.lock:
            lines = [_ranks(self.progress)] if self.progress.ranks else []
            if self.progress.evals or self.evaluating:
                lines.append(_held_out(self.progress.evals, self.evaluating))
            lines += [Text(), *_number_lines(self.progress, width)]
            if self.group:
                most = max(3, min(len(self.group.completions), GROUP_ROWS, self.console.height - len(lines) - 6))
                group = group_lines(self.group, width, most)
                # Always as tall as the tallest group, so that the frame does not jump.
                blank = [Text()] * (most + 1 - len(group))
                title = f"── a group of step {self.group_step} "
                lines += [Text(), Text(f"{title:─<{width}}", FAINT), *group, *blank]
            bar = _bar(self.progress, width)
        heading = _heading(self.run, width)
        for line in (heading, *lines):
            line.no_wrap, line.overflow = True, "crop"
        return Stack(heading, bar, *lines)


def _heading(run: Run, width: int) -> Text:
    about = printable(settings_line(run), max(10, width - len(run.name) - 2))
    return Text.assemble((run.name, "bold"), (about.rjust(width - len(run.name)), FAINT))


def _bar(progress: RunProgress, width: int) -> Table:
    left = f"  {clock(progress.seconds_left())} left" if progress.first_step < progress.done < progress.steps else ""
    row = Table.grid(expand=True)
    row.width = width
    row.add_column(ratio=1, min_width=5)
    row.add_column(no_wrap=True, overflow="crop")
    bar = ProgressBar(progress.steps, progress.done, style=FAINT, complete_style="bold", finished_style="bold")
    row.add_row(bar, f"  step {progress.done}/{progress.steps}  {clock(progress.seconds())} elapsed{left}")
    return row


def _ranks(progress: RunProgress) -> Text:
    """Number of ranks and hosts; before the first step what they divide, then their speed and idle time."""
    idle = progress.idle()
    if not idle:
        return Text(str(progress.ranks), FAINT)
    speed = TOKENS_PER_SECOND.text(progress.trends[TOKENS_PER_SECOND].latest)
    return Text.assemble((f"{progress.ranks.count()}   ", FAINT), (speed, "bold"), (f" tokens/s   {idle}", FAINT))


def _held_out(evals: Sequence[Mapping[str, Any]], evaluating: int) -> Text:
    """The last evaluation, and whether one is running."""
    step = evals[-1]["step"] if evals else 0
    when = "" if not evals else f"   after {step} steps" if step else "   before training"
    now = f"   evaluating {evaluating} problems" if evaluating else ""
    return Text.assemble(("held out ", FAINT), (headline(evals), "bold"), (when + now, FAINT))


def _number_lines(progress: RunProgress, width: int) -> list[Text]:
    """Two columns of label, value and trend, filled from top to bottom."""
    blocks = max(3, min(30, (width - 2) // 2 - 20))
    cells = [
        Text.assemble(
            (f"{number.label:<12}", FAINT),
            (f"{number.text(trend.latest):>7} ", "bold"),
            (f"{trend.blocks(blocks, number.top):<{blocks}}", FAINT),
        )
        for number, trend in progress.numbers()
    ]
    half = (len(cells) + 1) // 2
    return [Text("  ").join(cells[i::half]) for i in range(half)]


@dataclass(frozen=True)
class Number:
    """A number shown for each step: the sum of its metrics."""

    label: str
    metrics: tuple[str, ...]
    form: str
    top: float = 0.0
    """Smallest value of a full block in the trend: 1 for shares, so that their height can be read."""
    from_first: bool = False
    """Shown once it is not 0."""

    def text(self, value: float) -> str:
        return self.form.format(value) if math.isfinite(value) else "–"


GRAD_NORM = Number("grad norm", ("grad_norm",), "{:.2f}")
TOKENS_PER_SECOND = Number("tokens/s", ("tokens_per_second",), "{:,.0f}")
GRPO_NUMBERS = (
    Number("reward", ("reward_mean",), "{:.2f}"),
    Number("accuracy", ("accuracy",), "{:.0%}", top=1.0),
    Number("turns", ("turns_mean",), "{:.1f}"),
    Number("calls", ("calls",), "{:.2f}", from_first=True),
    Number("length", ("length_mean",), "{:.1f}"),
    Number("zero signal", ("zero_signal_groups",), "{:.0%}", top=1.0),
    Number("entropy", ("entropy",), "{:.3f}"),
    Number("KL", ("kl",), "{:.4f}"),
    Number("clipped", ("clip_low", "clip_high"), "{:.1%}"),
    GRAD_NORM,
    TOKENS_PER_SECOND,
)
SFT_NUMBERS = (Number("loss", ("sft_loss",), "{:.3f}"), TOKENS_PER_SECOND, Number("lr", ("lr",), "{:.1e}"), GRAD_NORM)


class Trend:
    """Means over equally many steps each, at most 128 means, for a run of any length."""

    def __init__(self) -> None:
        self.latest = math.nan
        self.means: list[float] = []
        self.pending: list[float] = []
        self.steps_per_mean = 1

    def add(self, value: float) -> None:
        self.latest = value
        if not math.isfinite(value):
            return
        self.pending.append(value)
        if len(self.pending) == self.steps_per_mean:
            self.means.append(sum(self.pending) / self.steps_per_mean)
            self.pending.clear()
        if len(self.means) == 128:
            self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
            self.steps_per_mean *= 2

    def blocks(self, width: int, top: float) -> str:
        """The trend in block characters, drawn from 0 upward, so that a nearly constant number looks flat."""
        count = min(width, len(self.means))
        bounds = [len(self.means) * i // count for i in range(count + 1)] if count else []
        parts = [self.means[start:end] for start, end in pairwise(bounds)]
        means = [sum(part) / len(part) for part in parts]
        low, high = min([0.0, *means]), max([top, *means])
        return "".join("▁▂▃▄▅▆▇█"[round(7 * (mean - low) / (high - low or 1.0))] for mean in means)


class RunProgress:
    """Steps done, evaluations and trends of a running run: what both views show."""

    def __init__(self, run: Run, config: Config | SftConfig, first_step: int):
        self.steps = config.steps or run.config["steps"]  # 0 in the config of fine-tuning by epochs
        self.first_step = self.done = first_step
        self.started_at, self.tokens = time.monotonic(), 0.0
        self.evals: list[dict[str, Any]] = run.evals()
        self.trends = {number: Trend() for number in (SFT_NUMBERS if run.kind == "sft" else GRPO_NUMBERS)}
        self.traits: dict[Number, Trend] = {}
        self.ranks, self.last_rows = Ranks.of(run), deque[Mapping[str, Any]](maxlen=IDLE_STEPS)
        for metrics in run.metrics():  # of a resumed run
            self._follow(metrics)

    def add_evaluation(self, step: int, row: Mapping[str, float]) -> None:
        earlier = [known for known in self.evals if known["step"] < step]
        self.evals = [*earlier[:1], {**row, "step": step}]

    def add_step(self, step: int, metrics: Mapping[str, float]) -> None:
        if "sft_loss" in metrics:
            # Since the start: steps are reported when they have been recorded, and so several at once.
            self.tokens += metrics["tokens"]
            metrics = {**metrics, "tokens_per_second": self.tokens / max(self.seconds(), 1e-9)}
        self.done = step + 1
        self._follow(metrics)

    def _follow(self, metrics: Mapping[str, Any]) -> None:
        self.last_rows.append(metrics)
        for metric in trait_metrics(metrics):
            self.traits.setdefault(Number(label_of(metric), (metric,), "{:.0%}", top=1.0), Trend())
        for number, trend in (*self.trends.items(), *self.traits.items()):
            values = [metrics[name] for name in number.metrics if metrics.get(name) is not None]
            if len(values) == len(number.metrics):  # a skipped update has no gradient, clipping or entropy
                trend.add(sum(values))

    def idle(self) -> str:
        """Idle time of the ranks over the last steps; empty before the first one, and with one rank."""
        shares = self.ranks.idle(self.last_rows) if self.ranks else []
        return printable(self.ranks.idle_text(shares), 200) if shares else ""

    def numbers(self) -> list[tuple[Number, Trend]]:
        """The numbers that the run has: reward and accuracy, the task's traits, the others."""
        numbers = list(self.trends.items())
        numbers[2:2] = self.traits.items()
        known = {number: [*trend.means, *trend.pending] for number, trend in numbers}
        return [(number, trend) for number, trend in numbers if (any if number.from_first else bool)(known[number])]

    def seconds(self) -> float:
        return time.monotonic() - self.started_at

    def seconds_left(self) -> float:
        return self.seconds() / (self.done - self.first_step) * (self.steps - self.done)
