"""What a person sees of a run while it goes on: a live frame in a terminal, plain lines in a log."""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.console import Group as Stack
from rich.live import Live
from rich.text import Text

from grpo.cli.terminal.printed import FAINT, group_lines, printable, telling
from grpo.cli.terminal.progress import Progress
from grpo.cli.terminal.report import (
    clock,
    describe,
    eval_changes,
    headline,
    result,
    short_result,
    table_of_runs,
    write_line,
)
from grpo.record.events import Terminal
from grpo.types import Group

if TYPE_CHECKING:
    from grpo.config import Config, SftConfig
    from grpo.record.store import Run

PLAIN_WIDTH = 100
WIDEST_FRAME = 120
GROUP_ROWS = 8
SECONDS_BETWEEN_FRAMES = 1 / 8
SECONDS_TO_READ_A_GROUP = 2.0
SECONDS_OF_SILENCE = 5.0
"""After which a log is told what takes so long."""


def pick_view(quiet: bool) -> Terminal:
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    live = sys.stdout.isatty() and not quiet and unicode and not Console().is_dumb_terminal
    return LiveView() if live else LinesView(quiet)


class LinesView(Terminal):
    """Plain lines for a log; quiet: only what came of the run, in three."""

    def __init__(self, quiet: bool):
        self.quiet = quiet
        self.silence: threading.Timer | None = None

    def on_start(self, run: Run, config: Config | SftConfig, first_step: int) -> None:
        self.progress = Progress(run, config, first_step)
        self.told_step, self.told_at, self.lines_told = first_step, time.monotonic(), 0
        begun = f"from step {first_step} of {self.progress.steps}" if first_step else f"{self.progress.steps} steps"
        self._tell(f"{run.name}: {describe(run)}, {begun}, in {printable(str(run.path), 500)}")

    def on_evaluation_start(self, step: int, problems: int) -> None:
        line = f"held out after {step} steps: asking {problems} problems, sampled and greedy …"
        self.silence = threading.Timer(SECONDS_OF_SILENCE, self._tell, [line])
        self.silence.daemon = True
        self.silence.start()

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self._hush()
        self.progress.evaluated(step, metrics)
        changes = "  ".join(f"{label} {text}" for label, text in eval_changes(self.progress.evals).items())
        self._tell(f"held out after {step} steps  {changes}")

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        self.progress.stepped(step, metrics)
        now, done = time.monotonic(), self.progress.done
        if done < min(self.told_step + 10, self.progress.steps) and now < self.told_at + 10:
            return
        numbers = "  ".join(
            f"{number.label} {number.text(trend.latest):>4}" for number, trend in self.progress.numbers()
        )
        self._tell(f"step {done:>3}/{self.progress.steps}  {numbers}  {clock(self.progress.seconds_left())} left")
        if groups and self.lines_told % 5 == 0:
            lines = group_lines(telling(groups), PLAIN_WIDTH - 2, GROUP_ROWS)
            self._tell("\n".join([f"a group of step {done}", *(f"  {line.plain}".rstrip() for line in lines)]))
        self.told_step, self.told_at, self.lines_told = done, now, self.lines_told + 1

    def on_end(self, run: Run) -> None:
        self._hush()
        lines = short_result(run) if self.quiet else ["", *result(run, PLAIN_WIDTH)]
        write_line("\n".join(lines))

    def _hush(self) -> None:
        if self.silence:
            self.silence.cancel()

    def _tell(self, line: str) -> None:
        if not self.quiet:
            write_line(line)


class LiveView(Terminal):
    """One frame that stays in its place: how far, how well, the latest numbers with their trends, a group to read."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self.group: Group | None = None
        self.asked = 0
        """Problems of the evaluation that goes on."""
        self.group_step, self.group_at, self.drawn_at = 0, -math.inf, -math.inf

    def on_start(self, run: Run, config: Config | SftConfig, first_step: int) -> None:
        self.run, self.progress = run, Progress(run, config, first_step)
        # Drawn once a second from a thread of its own, too, so that the clock goes on through long steps.
        self.lock = threading.Lock()
        self.live = Live(get_renderable=self.frame, console=self.console, refresh_per_second=1)
        self.live.start(refresh=True)
        atexit.register(self.live.stop)  # a run that ends without `finished` must not leave the cursor hidden

    def on_warning(self, text: str) -> None:
        self.console.print(Text(f"grpo: {printable(text, 1000)}", style="bold"))

    def on_evaluation_start(self, step: int, problems: int) -> None:
        with self.lock:
            self.asked = problems

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        with self.lock:
            self.progress.evaluated(step, metrics)
            self.asked = 0
        self.live.refresh()

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        now = time.monotonic()
        with self.lock:
            self.progress.stepped(step, metrics)
            if groups and now >= self.group_at + SECONDS_TO_READ_A_GROUP:
                self.group, self.group_step, self.group_at = telling(groups), step + 1, now
        if now >= self.drawn_at + SECONDS_BETWEEN_FRAMES:
            self.drawn_at = now
            self.live.refresh()

    def on_end(self, run: Run) -> None:
        with self.lock:
            self.group, self.asked = None, 0
        self.live.stop()
        atexit.unregister(self.live.stop)
        for line in ["", *result(run, self.console.width)]:
            self.console.print(Text(line), soft_wrap=True)

    def frame(self) -> Stack:
        width = min(self.console.width, WIDEST_FRAME)
        with self.lock:
            lines = [_heading(self.run, width), _bar(self.progress, width)]
            if self.progress.evals or self.asked:
                lines.append(_held_out(self.progress.evals, self.asked))
            lines += [Text(), *_number_lines(self.progress, width)]
            if self.group:
                most = max(3, min(len(self.group.completions), GROUP_ROWS, self.console.height - len(lines) - 4))
                group = group_lines(self.group, width, most)
                # Always as tall as a group can be, or the frame would jump with each new one.
                blank = [Text()] * (most + 1 - len(group))
                title = f"── a group of step {self.group_step} "
                lines += [Text(), Text(f"{title:─<{width}}", FAINT), *group, *blank]
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        return Stack(*lines)


def _heading(run: Run, width: int) -> Text:
    about = printable(describe(run), max(10, width - len(run.name) - 2))
    return Text.assemble((run.name, "bold"), (about.rjust(width - len(run.name)), FAINT))


def _bar(progress: Progress, width: int) -> Text:
    left = f"  {clock(progress.seconds_left())} left" if progress.first_step < progress.done < progress.steps else ""
    told = f"  step {progress.done}/{progress.steps}  {clock(progress.seconds())} elapsed{left}"
    cells = max(5, width - len(told))
    filled = cells * progress.done // progress.steps
    return Text.assemble(("━" * filled, "bold"), ("─" * (cells - filled), FAINT), told)


def _held_out(evals: Sequence[Mapping[str, Any]], asked: int) -> Text:
    """What was measured last, and whether it is being measured now."""
    step = evals[-1]["step"] if evals else 0
    when = "" if not evals else f"   after {step} steps" if step else "   before training"
    now = f"   asking {asked} problems" if asked else ""
    return Text.assemble(("held out ", FAINT), (headline(evals), "bold"), (when + now, FAINT))


def _number_lines(progress: Progress, width: int) -> list[Text]:
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


def print_group(group: Group) -> None:
    """All completions of a group, in colour where there is a terminal."""
    console = Console()
    lines = group_lines(group, console.width if sys.stdout.isatty() else PLAIN_WIDTH, most=len(group.completions))
    for line in lines:
        if sys.stdout.isatty():
            console.print(line, soft_wrap=True)
        else:
            write_line(line.plain)


def print_run(run: Run) -> None:
    write_line("\n".join(result(run, PLAIN_WIDTH)))


def print_runs(rows: Sequence[Mapping[str, Any]], folder: str) -> None:
    lines = table_of_runs(rows) if rows else [f"no runs in {printable(folder, 200)} yet; make one with: grpo train"]
    write_line("\n".join(lines))
