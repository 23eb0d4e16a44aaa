"""The lab in a browser: every view loads cleanly, shows the engine's numbers, and runs nobody's code."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grpo.config import Config
from grpo.config.schema import as_dict
from grpo.core import group_advantages, reward_statistics, token_loss, token_terms
from grpo.lab.catalogue import RECORDINGS
from grpo.lab.server import show_in_browser
from grpo.lab.tokens import Traced
from grpo.record.store import Run
from grpo.training.credit import credit
from helpers.records import (
    METRICS,
    make_empty_run,
    make_episode_run,
    make_failed_run,
    make_groups,
    make_judged_run,
    make_run,
    make_sft_run,
)
from helpers.visit import HOSTILE, TOKEN, Lab, Visit, serving

pytestmark = pytest.mark.browser

EXAMPLE = "/runs/~tiny-arithmetic"
PAGES = [
    "/",
    "/metrics",
    "/learn",
    "/compare",
    "/compare?runs=seed-1,seed-2,diverged&by=tokens",
    EXAMPLE,
    f"{EXAMPLE}/overview?all=1",
    f"{EXAMPLE}/groups?step=5&group=1",
    f"{EXAMPLE}/tokens?step=5&token=2",
    f"{EXAMPLE}/tokens?step=5&token=1&lens=ratio",
    f"{EXAMPLE}/tokens?step=5&lens=entropy",
    f"{EXAMPLE}/signal",
    f"{EXAMPLE}/difficulty",
    f"{EXAMPLE}/completions?filters=wrong",
    f"{EXAMPLE}/completions?text=nothing+is+like+this",
    f"{EXAMPLE}/whatif?step=5&scale=none&weight.correct=0.5",
    f"{EXAMPLE}/replay?step=12",
    f"{EXAMPLE}/prompts",
    f"{EXAMPLE}/time?step=3",
    f"{EXAMPLE}/findings",
    "/runs/diverged/findings",
    "/runs/cispo/tokens?step=1&token=2",
    "/runs/sapo/tokens?step=1&token=2",
    "/runs/sapo/whatif?step=1",
    "/runs/ppo/groups?step=1",
    "/runs/ppo/whatif?step=1",
    "/runs/hostile/groups",
    "/runs/hostile/replay",
    "/runs/ranks/time",
    "/runs/equal/groups",
    "/runs/equal/signal",
    "/runs/played",
    "/runs/played/groups?step=1",
    "/runs/played/tokens?step=1&token=o1",
    "/runs/played/replay?step=1",
    "/runs/played/completions",
    "/runs/tuned",
    "/runs/tuned/groups",
    "/runs/begun",
    "/runs/begun/groups",
]
WORLD = {"size": 2, "hosts": ["gpu-1.cluster.example.org", "gpu-2"], "shard": "optimizer"}
WIDE, NARROW = (1280, 900), (390, 844)
ABOVE, BELOW = (0x2F, 0x7F, 0xD0), (0xD9, 0x6B, 0x0B)  # --above and --below of system.css
GREY = {"light": (0xE3, 0xE2, 0xDC), "dark": (0x2D, 0x30, 0x37)}  # --line
SURFACES = {"light": (0xFF, 0xFF, 0xFF), "dark": (0x19, 0x1B, 0x1F)}  # --mix


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    runs = tmp_path_factory.mktemp("runs")
    make_run(runs, "hostile", texts=lambda *place: HOSTILE)
    make_run(runs, "seed-1", seed=1, lr=1e-4)
    make_run(runs, "seed-2", seed=2, lr=1e-4, metrics=lambda step: {"reward_mean": 0.5 + step / 100})
    make_run(runs, "diverged", metrics=lambda step: {"kl": step / 10})
    for algorithm in ("cispo", "sapo", "ppo"):
        make_run(runs, algorithm, steps=3, evals=(), algorithm=algorithm)
    make_judged_run(runs, "equal", [2.0] * 4, [True, True, False, False])
    make_run(runs, "ranks", steps=3, evals=(), world=WORLD, metrics=lambda step: {"idle/0": 0.04, "idle/1": 0.4})
    make_episode_run(runs, "played", HOSTILE)
    make_sft_run(runs, "tuned")
    make_empty_run(runs, "begun")
    make_failed_run(runs, "failed", f"reward mine.py: {HOSTILE}")
    (runs / "broken").mkdir()
    (runs / "broken/run.db").write_bytes(b"no database")
    yield from serving(runs)


@pytest.fixture
def visit(chromium: Any, lab: Lab) -> Iterator[Visit]:
    visit = Visit(chromium.new_page(), lab)
    visit.turn("light", *WIDE)
    yield visit
    visit.page.close()


@pytest.mark.parametrize("path", PAGES)
def test_every_view_is_clean(visit: Visit, path: str) -> None:
    """Loaded wide and loaded narrow, light and dark."""
    for size in (WIDE, NARROW):
        visit.turn("light", *size)
        visit.go(path)
        for theme in ("light", "dark"):
            visit.turn(theme, *size)
            assert visit.violations() == [], f"{theme}, {size[0]} pixels"
        overflow = visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, "the page is wider than the screen"
        assert visit.page.locator(".failed, .katex-error").count() == 0
    assert visit.incomplete_charts() == []
    assert visit.complaints == []
    assert visit.elsewhere == []


def test_ranks_are_in_the_header_and_their_idle_time_beside_the_phases(visit: Visit) -> None:
    visit.go("/runs/ranks/time")
    header = visit.page.locator(".run-head > p").inner_text()
    assert header.endswith("2 ranks on 2 hosts, optimizer moments sharded")
    assert visit.page.locator(".ranks li").all_inner_texts() == [
        "rank 1 gpu-2\n40.0%",
        "rank 0 gpu-1.cluster.example.org\n4.0%",
    ]
    assert "22% on average over 2 ranks" in visit.page.locator(".card", has=visit.page.locator(".ranks")).inner_text()
    visit.go("/runs/seed-1/time")
    assert "rank" not in visit.page.locator("#main").inner_text()


def test_a_failed_run_shows_its_reason_as_text(visit: Visit) -> None:
    visit.go("/runs/failed")
    reason = visit.page.locator(".run-head > p", has_text="Reason: ").inner_text()
    assert HOSTILE[:70] in reason
    assert not set("\x1b\u202e\u200f") & set(reason)
    assert visit.page.evaluate("window.hacked") is None
    assert "This run recorded no step." in visit.page.inner_text("main")
    assert visit.violations() == []
    assert visit.complaints == []
    visit.go("/runs/begun")
    assert "Reason" not in visit.page.locator(".run-head").inner_text()


def test_equal_rewards_are_called_neither_right_nor_wrong(visit: Visit) -> None:
    """Rewards 2, 2, 2, 2, of which two are right."""
    visit.go("/runs/equal/groups")
    assert "1 group: 1 equal rewards" in visit.page.inner_text("main")
    assert "all have the same reward, though they are not all right or all wrong" in visit.page.inner_text("main")
    visit.go("/runs/equal/signal")
    assert "equal rewards 100%" in visit.page.inner_text("main")


def test_the_first_step_of_a_run_is_a_dot_in_each_chart(visit: Visit) -> None:
    visit.go("/runs/equal")
    charts = visit.page.locator(".metric .chart-frame")
    dots = visit.page.locator(".metric .chart-frame:has(path[d^=M][stroke-linecap=round])")
    assert dots.count() == charts.count() > 4
    visit.go("/runs/seed-1")
    assert dots.count() == 0


def test_a_completion_says_why_it_was_not_scored(visit: Visit) -> None:
    """The first of its error; a completion to which no reward applies has no error."""
    [group] = make_groups(0, groups=1, size=2)
    errors = (f"failure in reward mine.py:f: {HOSTILE}\nTraceback", "")
    unscored = tuple(
        replace(done, reward=None, why=why, advantages=np.zeros(6, np.float32))
        for done, why in zip(group.completions, errors, strict=True)
    )
    with Run.create(visit.lab.runs, "unscored", kind="grpo", config=as_dict(Config(model="tiny", steps=1))) as run:
        run.record(0, [replace(group, completions=unscored)], METRICS, {"rollout": 0.2})
        run.set_status("finished")
    visit.go("/runs/unscored/groups?sample=1")
    main = visit.page.locator("main")
    main.get_by_text("no completion has a reward: no signal").wait_for()
    [warning] = main.locator(".completion .warn").all_inner_texts()
    assert warning.startswith("failure in reward mine.py:f: <script>")
    assert "Traceback" not in main.inner_text()
    assert "Without a reward, this completion is excluded" in main.inner_text()
    assert visit.page.evaluate("window.hacked") is None
    shutil.rmtree(visit.lab.runs / "unscored")


def test_equal_rewards_have_signal_where_the_batch_is_the_baseline(visit: Visit) -> None:
    """One group is all wrong, and below the mean of both."""
    groups = make_groups(0, groups=2, rewards=lambda step, group, sample: {"correct": float(group * (sample % 2))})
    config = Config(model="tiny", task="arithmetic", steps=1, algorithm="reinforce", group_size=4)
    groups, metrics = credit(groups, config)
    with Run.create(visit.lab.runs, "batch", kind="grpo", config=as_dict(config)) as run:
        run.record(0, groups, METRICS | metrics, {"rollout": 0.2})
        run.set_status("finished")
    visit.go("/runs/batch/groups?step=0&group=0")
    main = visit.page.locator("main")
    main.get_by_text("all are wrong and have the same reward: this group has signal").wait_for()
    main.get_by_role("button", name="Advantage −0.25").first.click()
    main.get_by_text("Computed by grpo.core.group_advantages with baseline batch and scale none.").wait_for()
    visit.go("/runs/equal/groups")
    main.get_by_role("button", name="Advantage 0").first.click()
    main.get_by_text("All advantages of the group are exactly 0, so it has no signal.").wait_for()
    shutil.rmtree(visit.lab.runs / "batch")


def test_a_run_that_was_resumed_or_added_is_shown_when_the_reader_comes_back(visit: Visit) -> None:
    runs, page = visit.lab.runs, visit.page
    make_failed_run(runs, "again", "out of memory")
    visit.go("/runs")
    page.get_by_role("link", name="again").click()
    page.locator(".run-title .status-failed").wait_for()
    with Run.open(runs, "again") as run:
        run.set_status("finished")
    make_empty_run(runs, "added")
    page.get_by_role("link", name="Runs", exact=True).click()
    page.get_by_role("link", name="added").wait_for(timeout=2000)  # the list is asked for every three seconds
    page.get_by_role("link", name="again").click()
    page.locator(".run-title .status-finished").wait_for(timeout=5000)
    for name in ("again", "added"):
        shutil.rmtree(runs / name)


def test_an_unknown_run_is_told(visit: Visit) -> None:
    visit.go("/runs/nobody")
    assert "no run 'nobody' here" in visit.page.get_by_role("alert").inner_text()
    assert visit.violations() == []


def test_the_file_that_grpo_lab_opens_leads_to_a_page_without_the_token(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file, which is another site, so that a redirect would lose the cookie; then links, reloads and events."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for lab in serving(tmp_path):
        show_in_browser(f"{lab.origin}/?token={TOKEN}", tmp_path)
        page = chromium.new_page()
        page.goto(f"{lab.origin}/learn")
        assert "token missing or wrong" in page.content()
        page.goto(opened[0])
        page.wait_for_url(f"{lab.origin}/")
        page.get_by_role("link", name="Runs", exact=True).click()
        page.get_by_role("link", name="tiny-arithmetic").first.click()
        page.get_by_role("heading", name="tiny-arithmetic").wait_for()
        page.reload()
        page.get_by_role("heading", name="tiny-arithmetic").wait_for()
        assert page.evaluate("document.cookie") == ""
        assert page.evaluate(f"fetch('/api/runs{EXAMPLE.removeprefix('/runs')}/events').then(a => a.status)") == 200
        page.close()


def test_group_numbers_are_the_engines(visit: Visit) -> None:
    visit.go(f"{EXAMPLE}/groups?step=5&group=1")
    with Run.open(RECORDINGS, "tiny-arithmetic", readonly=True) as run:
        group = run.groups(5)[1]
    rewards = torch.tensor([[done["reward"] for done in group["completions"]]])
    advantages = group_advantages(rewards)
    expected = reward_statistics(rewards, advantages, torch.ones_like(rewards) > 0)
    assert visit.number("reward_mean") == pytest.approx(expected["reward_mean"], abs=5e-4)
    assert visit.number("reward_std") == pytest.approx(expected["reward_std"], abs=5e-4)
    for fold in visit.page.locator(".same button").all():
        fold.click()
    shown = [text.replace("−", "-") for text in visit.page.locator(".completion .advantage").all_inner_texts()]
    assert [float(text) for text in shown] == pytest.approx(sorted(advantages[0].tolist(), reverse=True), abs=5e-3)


def test_a_prompt_is_shown_as_the_model_read_it(visit: Visit) -> None:
    """With its special tokens, and as text alone."""
    visit.go("/runs/hostile/groups?step=1&group=2")
    page = visit.page
    page.get_by_text("The prompt as the model read it: 4 tokens").click()
    shown = page.locator(".rendered .untrusted").inner_text()
    assert shown.startswith(f"<|user|>{HOSTILE[:70]}")
    assert shown.endswith("⏎\n<|assistant|>")
    assert "ESC[31mred" in shown
    assert "rows.jsonl:2" in page.locator(".group-head").inner_text()
    assert page.evaluate("window.hacked") is None
    visit.go("/runs/seed-1/groups?step=1")
    assert page.locator(".rendered").count() == 1
    visit.go(f"{EXAMPLE}/groups?step=5")
    assert page.locator(".rendered").count() == 1
    assert visit.complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("path", "kind"), [("tokens?step=5&lens=push", ".token"), ("groups?step=5&group=1", ".advantage")]
)
def test_advantages_are_coloured_by_sign_and_size(visit: Visit, path: str, kind: str, theme: str) -> None:
    visit.turn(theme, *WIDE)
    visit.go(f"{EXAMPLE}/{path}")
    shown = []
    for sign, hue in (("above", ABOVE), ("below", BELOW)):
        chip = visit.page.locator(f"{kind}.{sign}").first
        strength = float(chip.evaluate("(chip) => chip.style.getPropertyValue('--strength')"))
        share = 0.55 * strength
        expected = [share * one + (1 - share) * other for one, other in zip(hue, SURFACES[theme], strict=True)]
        colour = _background(chip)
        assert strength > 0.05
        assert colour == pytest.approx(expected, abs=1), f"{sign} at strength {strength}"
        shown.append(colour)
    page = _background(visit.page.locator("body"))
    assert shown[0] != shown[1]
    assert page not in shown


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_episode_is_a_strip_of_turns(visit: Visit, theme: str) -> None:
    """What the model wrote is coloured by its advantage, what it read is grey and has no number."""
    visit.turn(theme, *WIDE)
    visit.go("/runs/played/groups?step=1")
    strip = visit.page.locator(".completion").first.locator(".strip")
    heads = [" ".join(text.split()) for text in strip.locator(".strip-head").all_inner_texts()]
    assert heads == ["Turn 1 2 tokens", "Reply ?", "Turn 2 1 token reward 0.50", "2 tool calls ?", "Turn 3 3 tokens"]
    share = 0.55 * float(strip.locator("li").first.evaluate("(turn) => turn.style.getPropertyValue('--strength')"))
    expected = [share * one + (1 - share) * other for one, other in zip(ABOVE, SURFACES[theme], strict=True)]
    assert [_background(turn) for turn in strip.locator("> .written").all()] == [pytest.approx(expected, abs=1)] * 3
    assert [_background(turn) for turn in strip.locator("> .read").all()] == [pytest.approx(GREY[theme])] * 2
    calls = [" ".join(text.split()) for text in strip.locator(".calls > li").all_inner_texts()]
    assert calls == [
        'calculate {"expression": "47*86"} 4042;',
        'search {"query": "6*7"} timed out search: timed out after 1 s',
    ]
    strip.get_by_label("Why has it no gradient?").first.click()
    assert "read, not sampled" in strip.get_by_role("note").inner_text()
    assert visit.page.evaluate("window.hacked") is None


def test_a_token_that_was_read_is_grey_and_says_why_it_has_no_gradient(visit: Visit) -> None:
    visit.go("/runs/played/tokens?step=1")
    tokens = visit.page.locator(".lens-row").first.locator(".token")
    read = ["observed" in (token.get_attribute("class") or "") for token in tokens.all()]
    assert read == [False, False, True, True, True, False, True, True, False, False, False]
    assert _background(tokens.nth(3)) == pytest.approx(GREY["light"])
    assert _background(tokens.nth(1)) != _background(tokens.nth(3))
    tokens.nth(1).click()
    visit.page.wait_for_url("**token=1**")
    visit.settle()
    assert visit.page.locator(".worked-card h2").inner_text() == "Token 2 of 6"
    visit.page.keyboard.press("ArrowRight")
    visit.page.wait_for_url("**token=o0**")
    assert "they have no gradient" in visit.page.locator("[data-observed]").inner_text()
    assert visit.complaints == []


def _background(element: Any) -> list[float]:
    """Red, green and blue from 0 to 255. Chromium writes a mixed colour as `color(srgb r g b)`, with shares of 1."""
    text = element.evaluate("(element) => getComputedStyle(element).backgroundColor")
    values = [float(number) for number in re.findall(r"[\d.]+", text)][:3]
    return [255 * value for value in values] if text.startswith("color(srgb") else values


@pytest.mark.parametrize("token", [0, 2])
def test_the_worked_loss_is_the_engines(visit: Visit, token: int) -> None:
    with Run.open(RECORDINGS, "tiny-arithmetic", readonly=True) as run:
        row = run.token_arrays(5)[0]
        traced = Traced(row, run.config["loss"])
    place = f"step=5&group={row['group_index']}&sample={row['sample_index']}&token={token}"
    visit.go(f"{EXAMPLE}/tokens?{place}")
    assert visit.number("share") == pytest.approx(token_loss(token, **traced.inputs), rel=1e-4)
    assert visit.number("push") == pytest.approx(token_terms(**traced.inputs).push[token].item(), abs=1e-5)


def test_what_if_is_the_engines(visit: Visit) -> None:
    visit.go(f"{EXAMPLE}/whatif?step=5&scale=none&baseline=leave_one_out")
    with Run.open(RECORDINGS, "tiny-arithmetic", readonly=True) as run:
        groups = run.groups(5)
    rewards = torch.tensor([[done["reward"] for done in group["completions"]] for group in groups])
    advantages = group_advantages(rewards, baseline="leave_one_out", scale="none")
    expected = reward_statistics(rewards, advantages, torch.ones_like(rewards) > 0)
    assert visit.number("advantage_std") == pytest.approx(expected["advantage_std"], abs=5e-4)
    # A control changes the address, and with it the numbers.
    visit.page.get_by_role("radio", name="group std").check()
    visit.page.wait_for_url("**baseline=leave_one_out")
    visit.settle()
    expected = group_advantages(rewards, baseline="leave_one_out").std().item()
    assert visit.number("advantage_std") == pytest.approx(expected, abs=5e-4)


def test_an_algorithm_is_shown_as_what_it_is(visit: Visit) -> None:
    visit.go("/runs/cispo/tokens?step=1&token=2")
    text = visit.page.locator(".worked-steps").inner_text()
    assert "No clip: the ratio only weights the gradient. Its cap is 5" in " ".join(text.split())
    assert visit.page.get_by_role("radio", name="Clip").count() == 0
    visit.go("/runs/ppo/whatif?step=1")
    assert "Advantages from a critic's values cannot be recomputed" in visit.page.locator("main").inner_text()
    visit.page.get_by_role("button", name="sapo").click()
    visit.page.wait_for_url("**surrogate=gate**")
    visit.settle()
    assert visit.page.get_by_text("τ above").count() == 1
    assert visit.complaints == []


@pytest.mark.parametrize("view", ["groups", "completions", "replay", "whatif", "difficulty"])
def test_completions_are_text_and_nothing_else(visit: Visit, view: str) -> None:
    visit.go(f"/runs/hostile/{view}?step=1")
    page = visit.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0
    assert visit.complaints == []
    if view in ("groups", "completions", "replay"):
        shown = page.locator("main .untrusted:visible", has_text="<script>").first
        text = shown.inner_text()
        assert HOSTILE[:70] in text
        assert "ESC[31mred" in text
        assert "U+202E" in text
        assert "U+200F" in text
        assert not set("\x1b\u202e\u200f") & set(text)


def test_logged_columns_are_shown_with_their_completion_as_text(visit: Visit) -> None:
    visit.go("/runs/hostile/groups?step=1&group=2")
    facts = visit.page.locator(".completion .facts").first
    assert "checked 3" in facts.inner_text()
    assert HOSTILE[:70] in facts.inner_text()
    assert visit.page.evaluate("window.hacked") is None


def test_keyboard_alone_gets_from_the_list_to_a_token(visit: Visit) -> None:
    visit.go("/")
    page = visit.page
    for _ in range(90):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "tiny-arithmetic":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/~tiny-arithmetic")
    visit.go(f"{EXAMPLE}/tokens?step=5")
    first = page.locator(".lens-row .token").first
    first.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**token=1**")
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**token=2**")
    visit.settle()
    assert page.locator(".worked-card h2").inner_text().startswith("Token 3 of ")
    page.locator("h1").click()
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**step=6")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**step=5")


def test_any_view_can_be_linked(visit: Visit) -> None:
    """What is clicked is in the address, and the address alone brings it back."""
    visit.go(f"{EXAMPLE}/groups?step=5")
    visit.page.locator(".group-button").nth(3).click()
    visit.page.wait_for_url("**group=3")
    visit.settle()
    before = visit.page.locator(".group").inner_text()
    visit.go(visit.page.url.removeprefix(visit.lab.origin))
    assert visit.page.locator(".group").inner_text() == before
    visit.page.go_back()
    visit.page.go_back()
    assert "group=" not in visit.page.url


def test_a_live_run_appears_and_grows(visit: Visit) -> None:
    """It has more steps than it will ever take: it grows until it is asked to stop."""
    settings = (
        "--model nano --steps 100000 --prompts-per-step 4 --group-size 4 --evaluation.problems 16 --evaluation.every 0 "
        "--checkpoint-every 0 --quiet --run live"
    )
    command = [sys.executable, "-m", "grpo", "train", *settings.split(), "--system.runs", str(visit.lab.runs)]
    visit.go("/")
    trainer = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        page = visit.page
        page.get_by_role("link", name="live").click()
        steps = page.locator(".stat").filter(has=page.get_by_text("Steps", exact=True)).locator(".stat-value")
        seen: list[int] = []
        while len(set(seen)) < 4:
            seen.append(int(steps.inner_text().replace(",", "")))
            page.wait_for_timeout(100)
            assert trainer.poll() is None
        assert seen == sorted(seen)
        assert page.locator(".run-title .status-running").count() == 1
        trainer.send_signal(signal.SIGTERM)
        page.locator(".run-title .status-stopped").wait_for()
        assert page.locator(".metric").count() > 5
        assert visit.complaints == []
        trainer.wait()
    finally:
        trainer.kill()
        trainer.wait()
    with Run.open(visit.lab.runs, "live", readonly=True) as run:
        assert int(steps.inner_text().replace(",", "")) == (run.last_step() or 0) + 1
