import gc
import io
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from grpo.cli.terminal.group import advantage_colour, best_first, group_lines, instructive, print_group
from grpo.cli.terminal.line import printable
from grpo.cli.terminal.live import LinesView, LiveView, Trend, pick_view
from grpo.cli.terminal.report import eval_changes, print_run, print_runs
from grpo.config import Config, Episodes, Evaluation, SftConfig
from grpo.config.schema import Loss, as_dict
from grpo.record.events import Terminal
from grpo.record.store import Run
from grpo.types import Call, Completion, Group, Observation, Problem

WORKED = "(7,12,18,20;2,5,13,17,26)260"
HOSTILE = "a\x1b[31mb [bold]x[/bold]\nc\u202ed"
HOSTILE_SHOWN = "a\\x1b[31mb [bold]x[/bold]⏎c\\u202ed"
CONFIG = Config(task="arithmetic", steps=40, prompts_per_step=2, group_size=4, evaluation=Evaluation(every=20))
METRICS = {
    "reward_mean": 0.75,
    "accuracy": 0.745,
    "worked_share": 0.5,
    "length_mean": 16.25,
    "entropy": 0.312,
    "kl": 0.0123,
    "clip_low": 0.01,
    "clip_high": 0.025,
    "zero_signal_groups": 0.25,
    "grad_norm": 1.75,
    "tokens_per_second": 12345.0,
}
BEFORE = {
    "accuracy": 0.352,
    "low": 0.311,
    "high": 0.395,
    "greedy_accuracy": 0.4,
    "greedy_low": 0.358,
    "greedy_high": 0.444,
    "worked_share": 0.12,
    "length_mean": 6.25,
}
AFTER = BEFORE | {
    "accuracy": 0.92,
    "low": 0.893,
    "high": 0.941,
    "greedy_accuracy": 0.954,
    "greedy_low": 0.932,
    "greedy_high": 0.969,
    "worked_share": 0.99,
    "length_mean": 24.0,
}


def completion(text: str, reward: float | None, advantage: float | None = None) -> Completion:
    length = max(1, len(text))
    advantages = None if advantage is None else np.full(length, advantage, np.float32)
    correct = None if reward is None else reward >= 1
    zeros = np.zeros(length, np.float32)
    return Completion(text, np.ones(length), zeros, "stop", reward=reward, correct=correct, advantages=advantages)


def group(prompt: str, answer: str, *completions: Completion) -> Group:
    return Group(Problem(f"id of {prompt}", prompt, answer), np.array([1]), completions, 0)


def mixed(wrong: str = "250") -> Group:
    """Three right answers, two of them the same, and three equal wrong ones, worst first."""
    wrongs = [completion(wrong, 0.0, -0.9128)] * 3
    return group("37+85+46+92=", "260", *wrongs, completion(WORKED, 1.0, 0.91), *[completion("260", 1.0, 0.91)] * 2)


def equal() -> Group:
    return group("1+1=", "2", *[completion("2", 1.0, 0.0)] * 4)


def probes(sums: str, product: str) -> list[Group]:
    """A sum that is right when it says 260, and a product that never is."""
    reward = float(sums.endswith("260"))
    return [
        group("12*12=", "144", *[completion(product, 0.0)] * 4),
        group("37+85+46+92=", "260", *[completion(sums, reward)] * 4),
    ]


def new_run(folder: Path, config: Config = CONFIG) -> Run:
    return Run.create(folder, "sums-001", kind="grpo", config=as_dict(config))


def train(view: Terminal, run: Run, groups: Sequence[Group], steps: int = 40, status: str = "finished") -> None:
    """What the loop does: an evaluation, steps, and unless it was stopped another evaluation."""

    def evaluate(step: int, row: dict[str, float], pinned: list[Group]) -> None:
        run.record_eval(step, row, [])
        run.record_probes(step, pinned)
        view.on_evaluation(step, row)

    view.on_start(run, CONFIG, 0)
    evaluate(0, BEFORE, probes("252", "154"))
    for step in range(steps):
        run.record(step, groups, METRICS, {"rollout": 2.0, "reward": 0.25, "update": 1.0})
        view.on_step(step, METRICS, groups)
    if status == "finished":
        evaluate(steps, AFTER, probes(WORKED, "134"))
    run.set_status(status)


def add_checkpoint(run: Run, step: int) -> None:
    folder = run.path / "checkpoints" / f"step-{step:06d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")


def frame(view: LiveView, width: int) -> list[str]:
    """The lines of the view's frame as a terminal of this width shows them."""
    view.console = Console(width=width, height=30, force_terminal=True, file=io.StringIO(), record=True)
    view.console.print(view.frame())
    lines = view.console.export_text().splitlines()
    assert all(cell_len(line) <= width for line in lines)
    return [line.rstrip() for line in lines]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with new_run(tmp_path) as run:
        yield run


@pytest.fixture
def live() -> Iterator[LiveView]:
    view = LiveView(Console(width=80, height=30, force_terminal=True, file=io.StringIO()))
    yield view
    view.live.stop()


def test_lines_tell_start_evaluations_steps_and_a_group(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    view = LinesView(quiet=False)
    train(view, run, [equal(), mixed()])
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert "\x1b" not in output
    assert lines[0] == f"sums-001: tiny · arithmetic · grpo · 2×4, 40 steps, in {run.path}"
    assert lines[1].startswith("held out after 0 steps  sampled 35.2% [31–40]  greedy 40.0% [36–44]  worked 12%")
    assert [line.split()[1] for line in lines if line.startswith("step ")] == ["10/40", "20/40", "30/40", "40/40"]
    step_line = next(line for line in lines if line.startswith("step "))
    for shown in ("reward 0.75", "accuracy  74%", "worked  50%", "length 16.2", "entropy 0.312", "KL 0.0123"):
        assert f"  {shown}  " in step_line
    for shown in ("clipped 3.5%", "zero signal  25%", "grad norm 1.75", "tokens/s 12,345"):
        assert f"  {shown}  " in step_line
    assert "held out after 40 steps  sampled 35.2% [31–40] → 92.0% [89–94]" in lines[-1]
    start = lines.index("a group of step 10")
    assert [line.split() for line in lines[start + 1 : start + 5]] == [
        ["reward", "advantage", "37+85+46+92=", "answer", "260"],
        ["1.00", "+0.91", "×2", "260"],
        ["1.00", "+0.91", WORKED],
        ["0.00", "-0.91", "×3", "250"],
    ]
    assert output.count("a group of step") == 1


def test_the_mean_reward_is_told_where_it_is_not_the_accuracy() -> None:
    graded = [{**BEFORE, "reward_mean": 0.4512}, {**AFTER, "reward_mean": 1.2}]
    assert eval_changes(graded)["reward"] == "0.451 → 1.200"
    whole = [{**row, "reward_mean": row["accuracy"]} for row in (BEFORE, AFTER)]
    assert list(eval_changes(whole)) == list(eval_changes([BEFORE, AFTER])) == ["sampled", "greedy", "worked", "length"]


def test_turns_and_calls_are_told_of_episodes(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (
        {**row, "turns_mean": turns, "calls": calls} for row, turns, calls in ((BEFORE, 1.25, 0.0), (AFTER, 2.0, 1.5))
    )
    told = eval_changes([before, after])
    assert [told["turns"], told["calls"]] == ["1.2 → 2.0", "0.00 → 1.50"]
    assert "calls" not in eval_changes([before, before])  # a task or an environment answers
    view = LinesView(quiet=False)
    view.on_start(run, CONFIG, 0)
    view.on_step(9, {**METRICS, "turns_mean": 1.25, "calls": 0.0}, [])
    view.on_step(19, {**METRICS, "turns_mean": 2.0, "calls": 1.5}, [])
    _, first, second = capsys.readouterr().out.splitlines()
    assert "  worked  50%  turns  1.2  length" in first
    assert "  worked  50%  turns  2.0  calls 1.50  length" in second


def test_a_long_evaluation_says_what_it_does(run: Run, live: LiveView, capsys: pytest.CaptureFixture[str]) -> None:
    lines = LinesView(quiet=False)
    lines.on_start(run, CONFIG, 0)
    lines.on_evaluation_start(0, 500)
    assert lines.notice is not None
    lines.notice.function(*lines.notice.args)
    assert capsys.readouterr().out.splitlines()[1:] == ["held out after 0 steps: evaluating 500 problems …"]
    lines.on_evaluation(0, BEFORE)
    assert lines.notice.finished.is_set()  # nothing is said any more
    live.on_start(run, CONFIG, 0)

    def held_out() -> str:
        console = Console(width=80, file=io.StringIO())
        console.print(live.frame())
        [line] = [line for line in console.file.getvalue().splitlines() if line.startswith("held out")]
        return line.strip()

    live.on_evaluation_start(0, 500)
    assert held_out() == "held out    evaluating 500 problems"
    live.on_evaluation(0, BEFORE)
    assert held_out() == "held out 35.2% [31–40]   before training"
    live.on_evaluation_start(20, 500)
    assert held_out() == "held out 35.2% [31–40]   before training   evaluating 500 problems"


def test_lines_come_after_ten_seconds_when_steps_are_slow(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("grpo.cli.terminal.live.time.monotonic", lambda: now[0])
    view = LinesView(quiet=False)
    view.on_start(run, CONFIG, 0)
    for step in range(4):
        now[0] += 6.0
        view.on_step(step, METRICS, [])
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in told] == ["2/40", "4/40"]
    assert told[0].endswith("  3:48 left")  # 38 more steps of 6 seconds


def test_hostile_text_is_escaped(run: Run, live: LiveView, capsys: pytest.CaptureFixture[str]) -> None:
    nasty = replace(mixed(HOSTILE), problem=Problem("p", HOSTILE, "\x1b"))
    lines = LinesView(quiet=False)
    train(lines, run, [nasty], steps=10, status="stopped")
    run.record_probes(10, [group(HOSTILE, HOSTILE, completion(HOSTILE, 0.0))])
    lines.on_end(run)
    output = capsys.readouterr().out
    assert output.count(HOSTILE_SHOWN) >= 2
    assert "\x1b" not in output
    assert "\u202e" not in output

    live.on_start(run, CONFIG, 0)
    live.on_step(0, METRICS, [nasty])
    screen = "\n".join(frame(live, 80))
    assert screen.count(HOSTILE_SHOWN) >= 2
    assert "\x1b" not in screen
    assert "\u202e" not in screen


@pytest.mark.parametrize("width", [80, 60])
def test_live_frame(run: Run, live: LiveView, width: int) -> None:
    train(live, run, [equal(), mixed("250 " * 100)])
    lines = frame(live, width)
    assert lines[0].startswith("sums-001 ")
    assert lines[0].endswith("tiny · arithmetic · grpo · 2×4")
    assert "━" in lines[1]
    assert "step 40/40  0:0" in lines[1]
    assert lines[2] == "held out 35.2% [31–40] → 92.0% [89–94]   after 40 steps"
    screen = " ".join("\n".join(lines).split())
    for shown in ("reward 0.75", "accuracy 74%", "worked 50%", "length 16.2", "zero signal 25%", "entropy 0.312"):
        assert f"{shown} " in screen
    for shown in ("KL 0.0123", "clipped 3.5%", "grad norm 1.75", "tokens/s 12,345"):
        assert f"{shown} " in screen
    assert "reward advantage 37+85+46+92= answer 260 1.00 +0.91 ×2 260 1.00 +0.91 (7,12" in screen
    assert "0.00 -0.91 ×3 250 250" in screen
    assert any("…" in line and "250" in line.rpartition("…")[2] for line in lines)


def test_live_frame_before_the_first_step(run: Run, live: LiveView) -> None:
    live.on_start(run, CONFIG, 0)
    assert "step 0/40  0:00 elapsed" in frame(live, 80)[1]
    live.on_evaluation(0, BEFORE)
    assert frame(live, 80)[2] == "held out 35.2% [31–40]   before training"


def test_several_ranks_have_a_line(run: Run, live: LiveView, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks 0 to 3 are idle for 10% of every step, rank 4 for 50% and then 70%: 60%, and 20% on average."""
    run.set_meta("world", {"size": 5, "hosts": ["gpu-1"] * 3 + ["gpu-2"] * 2, "shard": "weights"})
    sharded = "5 ranks on 2 hosts, optimizer moments and float32 weights sharded"
    rows = [
        METRICS | {f"idle/{rank}": 0.1 for rank in range(4)} | {"idle/4": 0.7 if step % 2 else 0.5}
        for step in range(20)
    ]
    waiting = "idle 20% (mean), 60% (rank 4 on gpu-2)"
    view = LinesView(quiet=False)
    view.on_start(run, CONFIG, 0)
    for step, row in enumerate(rows):
        run.record(step, [], row, {"rollout": 0.1})
        view.on_step(step, row, [])
    run.set_status("finished")
    view.on_end(run)
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == sharded
    assert [f"tokens/s 12,345  {waiting}  0:0" in line for line in printed[2:4]] == [True, True]
    assert f"ranks      {sharded}; {waiting}" in printed
    assert run.summary()["world"]["size"] == 5
    run.rewind(0)
    live.on_start(run, CONFIG, 0)
    assert frame(live, 80)[2] == sharded
    for step, row in enumerate(rows):
        live.on_step(step, row, [])
    assert frame(live, 80)[2] == f"5 ranks on 2 hosts   12,345 tokens/s   {waiting}"


def test_frame_keeps_its_height_when_groups_differ(run: Run, live: LiveView) -> None:
    live.on_start(run, CONFIG, 0)
    heights = set()
    for shown in (mixed(), group("p", "a", *[completion(str(i), float(i), i / 10) for i in range(6)])):
        live.group_at = -np.inf
        live.on_step(0, METRICS, [shown])
        assert shown is live.group
        heights.add(len(frame(live, 80)))
    assert len(heights) == 1


def test_numbers_a_run_does_not_have_are_not_shown(tmp_path: Path, live: LiveView) -> None:
    metrics = {name: value for name, value in METRICS.items() if name not in ("worked_share", "entropy", "kl")}
    with new_run(tmp_path, replace(CONFIG, loss=Loss(beta=0.0))) as run:
        live.on_start(run, CONFIG, 0)
        live.on_step(0, metrics | {"reward_mean": float("nan")}, [])
        live.on_step(1, metrics | {"grad_norm": float("nan")}, [])
        screen = "\n".join(frame(live, 80))
    for absent in ("worked", "entropy", "KL", "group"):
        assert absent not in screen
    assert "grad norm         – ▁" not in screen  # one finite value, drawn at full height
    assert "grad norm         – █" in screen


def test_drawing_is_throttled_and_groups_are_let_go(run: Run, live: LiveView, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("grpo.cli.terminal.live.time.monotonic", lambda: now[0])
    live.on_start(run, CONFIG, 0)
    drawn, groups = [], []
    monkeypatch.setattr(live.live, "refresh", lambda: drawn.append(now[0]))
    for step in range(256):  # four seconds
        now[0] += 1 / 64
        sampled = mixed()
        groups.append(weakref.ref(sampled))
        live.on_step(step, METRICS, [sampled])
    del sampled
    gc.collect()
    assert 30 <= len(drawn) <= 33
    assert sum(group() is not None for group in groups) == 1
    assert live.group_step == 129  # the second one: the first was left to be read for two seconds


def test_a_resumed_run_keeps_its_first_evaluation_and_its_trends(run: Run, live: LiveView) -> None:
    run.record_eval(0, BEFORE, [])
    run.record(0, [], METRICS | {"accuracy": 0.0}, {})
    live.on_start(run, replace(CONFIG, steps=60), 1)
    live.on_evaluation(1, AFTER)
    live.on_step(1, METRICS | {"accuracy": 1.0}, [])
    lines = frame(live, 80)
    assert "step 2/60" in lines[1]
    assert lines[2] == "held out 35.2% [31–40] → 92.0% [89–94]   after 1 steps"
    assert "100% ▁█ " in "\n".join(lines)


@pytest.mark.parametrize("kind", ["lines", "live"])
def test_ending(run: Run, live: LiveView, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    view = live if kind == "live" else LinesView(quiet=False)
    live.on_start(run, CONFIG, 0)
    live.live.stop()
    train(view, run, [mixed()])
    add_checkpoint(run, 40)
    capsys.readouterr()
    live.console = Console(width=100, file=io.StringIO(), force_terminal=True)
    view.on_end(run)
    output = live.console.file.getvalue() if kind == "live" else capsys.readouterr().out  # type: ignore[attr-defined]
    assert "\x1b" not in output
    elsewhere = f" --runs {run.path.parent}"
    lines = output.splitlines()
    record = next(line for line in lines if line.startswith("training")).rpartition("record ")[2]
    seconds = 40 * 3.25 + float(record.removesuffix(" s"))
    assert lines == [
        "",
        "sums-001 finished after 40 steps (tiny · arithmetic · grpo · 2×4)",
        "",
        "held out   before → after 40 steps   [95% interval]",
        "sampled    35.2% [31–40] → 92.0% [89–94]",
        "greedy     40.0% [36–44] → 95.4% [93–97]",
        "worked     12% → 99%",
        "length     6.2 → 24.0 tokens",
        "",
        "37+85+46+92=   answer 260",
        "before     0 of 4 right   ×4 252",
        f"after      4 of 4 right   ×4 {WORKED}",
        "",
        "12*12=   answer 144",
        "before     0 of 4 right   ×4 154",
        "after      0 of 4 right   ×4 134",
        "",
        f"training   2:{seconds - 120:02.0f}: rollout 1:20, reward 10.0 s, update 40.0 s, record {record}",
        f"run        {run.path}",
        f"next       grpo lab{elsewhere}   see why, in the browser",
        f"           grpo runs sums-001{elsewhere}",
        f'           grpo sample sums-001 "12*12=" -n 8{elsewhere}',
        f"           grpo export sums-001 my-model{elsewhere}",
    ]


def test_what_to_type_next_is_found_by_the_shell(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [".venv/bin/grpo", "train"])
    monkeypatch.setenv("PATH", str(tmp_path))
    view = LinesView(quiet=False)
    train(view, run, [mixed()], steps=1)
    view.on_end(run)
    assert "next       .venv/bin/grpo lab" in capsys.readouterr().out


def test_ending_of_a_stopped_run_tells_how_to_resume(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    view = LinesView(quiet=False)
    train(view, run, [mixed()], steps=3, status="stopped")
    capsys.readouterr()
    view.on_end(run)
    output = capsys.readouterr().out
    assert "sums-001 stopped after 3 steps" in output
    assert "held out   after 0 steps" in output
    assert "before     0 of 4 right   ×4 252" in output
    assert "after      " not in output
    assert "resume     grpo train … --run sums-001 --resume" in output
    assert "grpo export" not in output  # there is no checkpoint yet


def test_the_line_that_resumes_is_the_one_that_was_typed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Even where something else has the run's name."""
    run.set_status("stopped")
    for named in (["--run", "sums-001"], ["--run=sums-001"], []):
        run.set_meta("command", ["grpo", "train", "--model", "sums-001", *named, "--resume", "--steps", "9"])
        print_run(run)
        wanted = "resume     grpo train --model sums-001 --steps 9 --run sums-001 --resume"
        assert capsys.readouterr().out.splitlines()[-1] == wanted


def test_the_line_that_resumes_fine_tuning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = as_dict(SftConfig(model="tiny", data="data/rows.jsonl")) | {"steps": 20}
    with Run.create(tmp_path, "sft-001", kind="sft", config=config) as run:
        run.set_status("stopped")
        run.set_meta("command", ["grpo", "sft", "tiny", "data/rows.jsonl", "--steps", "20"])
        print_run(run)
    resumed = "resume     grpo sft tiny data/rows.jsonl --steps 20 --run sft-001 --resume"
    assert capsys.readouterr().out.splitlines()[-1] == resumed


def test_ending_of_a_run_that_failed_at_once(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.set_status("failed")
    LinesView(quiet=False).on_end(run)
    assert capsys.readouterr().out.startswith(
        "\nsums-001 failed after 0 steps (tiny · arithmetic · grpo · 2×4)\n\nrun  "
    )


def test_suggested_command_cannot_run_what_a_prompt_says(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    add_checkpoint(run, 1)
    run.record_probes(0, [group(prompt, "x", completion("y", 0.0)) for prompt in ("two\nlines", "$(rm -rf ~)")])
    print_run(run)
    assert "grpo sample sums-001 '$(rm -rf ~)' -n 8" in capsys.readouterr().out


def test_no_prompt_is_suggested_for_an_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = as_dict(Config(model="tiny", task="env", episodes=Episodes(env="guess.py:Guess")))
    with Run.create(tmp_path, "guess-001", kind="grpo", config=config) as run:
        add_checkpoint(run, 1)
        run.record_probes(0, [group("0-14?", "x", completion("y", 0.0))])
        print_run(run)
    assert "grpo sample guess-001 -n 8" in capsys.readouterr().out


@pytest.mark.parametrize("status", ["finished", "stopped"])
def test_quiet_prints_at_most_three_lines(run: Run, status: str, capsys: pytest.CaptureFixture[str]) -> None:
    view = LinesView(quiet=True)
    train(view, run, [mixed()], status=status)
    assert capsys.readouterr().out == ""
    view.on_end(run)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"sums-001 {status} after 40 steps"
    after = {"finished": " → 92.0% [89–94], greedy 40.0% [36–44] → 95.4% [93–97]", "stopped": ", greedy 40.0% [36–44]"}
    assert lines[1] == f"held out 35.2% [31–40]{after[status]}"
    resume = "; resume: grpo train … --run sums-001 --resume" if status == "stopped" else ""
    assert lines[2:] == [f"{run.path}{resume}"]


def test_supervised_fine_tuning(
    tmp_path: Path, live: LiveView, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seconds a step, but steps 10 to 19 are reported at once: 20 × 640 tokens in 40 seconds are 320 a second."""
    now = [0.0]
    monkeypatch.setattr("grpo.cli.terminal.live.time.monotonic", lambda: now[0])
    config = SftConfig(model="tiny", data="data/rows.jsonl")
    run = Run.create(tmp_path, "sft-001", kind="sft", config=as_dict(config) | {"steps": 20})
    lines = LinesView(quiet=False)
    lines.on_start(run, config, 0)
    for step in range(20):
        metrics = {"sft_loss": 2.5 / (step + 1), "tokens": 640.0, "lr": 1e-3, "grad_norm": 0.5}
        run.record(step, [], metrics, {})
        now[0] = 2.0 * (step + 1) if step < 9 else 40.0
        lines.on_step(step, metrics, [])
    run.set_status("finished")
    lines.on_end(run)
    output = capsys.readouterr().out
    assert output.startswith("sft-001: tiny · rows.jsonl · sft, 20 steps, in ")
    assert "step  20/20  loss 0.125  tokens/s  320  lr 1.0e-03  grad norm 0.50  0:00 left\n" in output
    assert "loss       2.500 → 0.125" in output
    assert "held out" not in output

    live.on_start(run, config, 0)
    live.on_step(0, metrics, [])
    screen = " ".join("\n".join(frame(live, 80)).split())
    assert "step 1/20 " in screen
    assert "loss 0.125 █" in screen
    assert " lr 1.0e-03 " in screen
    assert " tokens/s " in screen
    run.close()


def test_pick_view(monkeypatch: pytest.MonkeyPatch) -> None:
    picked = pick_view(quiet=False)
    assert isinstance(picked, LinesView)
    assert not picked.quiet
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert isinstance(pick_view(quiet=False), LiveView)
    quiet = pick_view(quiet=True)
    assert isinstance(quiet, LinesView)
    assert quiet.quiet
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(pick_view(quiet=False), LinesView)


def test_a_narrow_encoding_gets_escapes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    train(LinesView(quiet=False), run, [mixed()], steps=10)
    assert b"35.2% [31\\u201340] \\u2192 92.0%" in written.getvalue()


def test_rows_are_merged_and_the_best_come_first() -> None:
    unscored = completion("odd", None, 0.0)
    rows = best_first(replace(mixed(), completions=(unscored, *mixed().completions)))
    assert [(row.text, row.reward, len(equal)) for row, equal in rows] == [
        ("260", 1.0, 2),
        (WORKED, 1.0, 1),
        ("250", 0.0, 3),
        ("odd", None, 1),
    ]
    assert rows[-1][0].advantage is None


def test_a_group_with_unequal_rewards_is_preferred() -> None:
    first, second = equal(), mixed()
    assert instructive([first, second]) is second
    assert instructive([first, equal()]) is first
    unscored = group("1+1=", "2", completion("2", 1.0, 0.0), completion("?", None, 0.0))
    assert instructive([unscored, second]) is second


def test_of_many_different_completions_the_best_and_the_worst_are_shown() -> None:
    many = group("p", "a", *[completion(f"text {i}", float(i), i / 10) for i in range(16)])
    shown = [line.plain.split()[-2:] for line in group_lines(many, 80, most=6)[1:]]
    best, worst = [["text", "15"], ["text", "14"], ["text", "13"]], [["text", "1"], ["text", "0"]]
    assert shown == [*best, ["11", "more"], *worst]


def test_advantages_are_coloured_blue_above_and_orange_below() -> None:
    def channels(advantage: float) -> tuple[int, ...]:
        return tuple(bytes.fromhex(advantage_colour(advantage).removeprefix("#")))

    red, green, blue = channels(0.0)
    assert red == green == blue
    for advantage in (0.3, 1.0, 2.5):
        above, below = channels(advantage), channels(-advantage)
        assert above[2] > above[1] > above[0]
        assert below[0] > below[1] > below[2]
    assert channels(2.5)[2] > channels(0.3)[2]


def test_long_text_keeps_its_end_and_wide_letters_count_twice() -> None:
    assert printable("think " * 10_000 + "so 42", 20) == "think think t… so 42"
    assert cell_len(printable("汉字" * 50, 21)) == 21
    assert printable("\t\r\n\x9b", 20) == "\\t⏎\\x9b"


def test_trend_is_bounded_and_spans_the_run() -> None:
    trend = Trend()
    for value in range(100_000):
        trend.add(float(value))
    trend.add(float("nan"))
    assert len(trend.means) < 128
    assert len(trend.pending) < trend.steps_per_mean
    assert trend.blocks(8, top=0.0) == "▁▂▃▄▅▆▇█"
    halves = Trend()
    for value in (0.0, 0.5, 1.0, -1.0):
        halves.add(value)
    assert halves.blocks(10, top=0.0) == "▅▆█▁"


def test_print_group_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_group(group("why?", "", completion("", None), completion(HOSTILE, None)))
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["reward", "advantage", "why?"],
        ["–", "–", "(nothing)"],
        ["–", "–", *HOSTILE_SHOWN.split()],
    ]
    print_runs([], "runs")
    assert capsys.readouterr().out == "no runs in runs yet; make one with: grpo train\n"
    columns = {"kind": "grpo", "created": "2026-01-02T03:04:05+00:00", "model": "tiny", "task": "arithmetic"}
    good = {"name": "sums-001", "status": "finished", "algorithm": "grpo", "steps": 40, "reward_mean": 0.5, **columns}
    bad = {**dict.fromkeys(good), "name": "broken", "status": "unreadable", "problem": "no\x1btable"}
    print_runs([good | {"problem": None}, bad], "runs")
    assert capsys.readouterr().out.splitlines() == [
        "name      status    model  task        algorithm  steps  reward  created",
        "sums-001  finished  tiny   arithmetic  grpo       40     0.50    2026-01-02 03:04",
        "broken    unreadable: no\\x1btable",
    ]


def test_print_group_shows_the_turns_of_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    right, bad = Call("multiply", '{"a": 47, "b": 86}', "4042"), Call("", "{", "error: the call is not JSON", "error")
    tools = episode(1.0, 0.5, ("47*86?", "4042"), "4042", right)
    limit = episode(0.0, -0.5, ("{", "?", "4000"), "\x1b[31m", bad, finish="turns")
    broken = episode(None, 0.0, ("?",), fault="failure", why="Game.step raised KeyError")
    print_group(group("47*86=", "4042", tools, broken, limit, tools))
    assert capsys.readouterr().out.splitlines() == [
        "reward  advantage       47*86=   answer 4042",
        "  1.00      +0.50   ×2  2 turns, finish stop",
        "                        47*86?",
        '                          multiply {"a": 47, "b": 86} → 4042',
        "                        4042",
        "  0.00      -0.50       3 turns, finish turns",
        "                        {",
        "                          call { → error: the call is not JSON   (error)",
        "                        ?",
        "                          \\x1b[31m",
        "                        4000",
        "     –          –       1 turn, environment: failure (Game.step raised KeyError)",
        "                        ?",
    ]
    [_, first, *_] = group_lines(group("47*86=", "4042", tools, limit), 80, most=2)
    assert first.plain == "  1.00      +0.50       47*86? ⟨4042⟩ 4042"


def episode(
    reward: float | None,
    advantage: float,
    turns: tuple[str, ...],
    text: str = "",
    call: Call | None = None,
    **fields: Any,
) -> Completion:
    """Turns of one token each; the first is answered with the call, the others with the text."""
    seen = [Observation(i + 1, np.array([7]), text, (call,) if call and not i else ()) for i in range(len(turns) - 1)]
    fields = {"finish": "stop", **fields}
    return replace(completion(turns[-1], reward, advantage), turns=turns, observations=tuple(seen), **fields)


def test_import_brings_no_torch() -> None:
    code = "import sys, grpo.cli.terminal.live; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
