"""The landing scene and the game in a browser: their numbers are the trainer's, and an address reproduces them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from grpo.config import Config
from grpo.config.schema import resolve
from grpo.core import group_advantages
from grpo.lab.chapters.nano import LONGEST, fresh_nano, nano, sum_of_three
from grpo.lab.chapters.update import one_update, seen_by
from grpo.lab.first_round import recorded
from grpo.model.hub import locate_model
from grpo.model.optimizer import make_optimizer
from helpers.visit import Lab, Visit, faults, open_page

pytestmark = pytest.mark.browser

PROMPT, SEED, LR = "31+15+21=", 3, 3e-4
ROWS = range(1, 9)
PHASES = ["Sample", "Score", "Compare", "Push", "Update"]


def trained(rounds: int) -> list[list[tuple[str, float, float]]]:
    """(text, log-probability before and after the update) of the scene's groups, by the trainer."""
    base = Config(model="nano", prompts_per_step=1, group_size=8, lr=LR, max_new_tokens=LONGEST)
    config = resolve(replace(base, loss=replace(base.loss, beta=0.0)))
    found = []
    with nano() as before, fresh_nano() as student:
        optimizer = make_optimizer(student.policy, config.optimizer)
        for number in range(1, rounds + 1):
            of_round = replace(config, seed=100 * SEED + number)
            *_, pause = one_update(student, before.policy, optimizer, [sum_of_three(PROMPT)], of_round)
            [after] = seen_by(student.policy, pause.groups, of_round)
            pairs = zip(pause.groups[0].completions, after.completions, strict=True)
            found.append([(old.text, float(old.logprobs.sum()), float(new.logprobs.sum())) for old, new in pairs])
    return found


def logprob(text: str) -> float:
    """Of a whole answer to the prompt under nano as transformers loads it."""
    folder = locate_model("nano")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt, answer = tokenizer.encode(PROMPT), [*tokenizer.encode(text), tokenizer.eos_token_id]
    with torch.no_grad():
        stock = transformers.AutoModelForCausalLM.from_pretrained(folder)
        logits_TV = stock(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    return float(logits_TV.log_softmax(-1)[torch.arange(len(answer)), answer].sum())


def texts(visit: Visit) -> list[str]:
    labels = [answer.get_attribute("aria-label") for answer in visit.page.locator(".scene-answer").all()]
    return [label.partition(": ")[2] for label in labels]


def numbers(visit: Visit, name: str) -> list[float]:
    return [visit.number(f"{name}-{row}") for row in ROWS]


def shown_logprobs(visit: Visit, side: str) -> list[float]:
    cells = [visit.page.locator(f"[data-number=probability-{row}-{side}]") for row in ROWS]
    return [math.log(float(cell.get_attribute("data-exact"))) for cell in cells]


def advantages(rewards: list[float]) -> list[float]:
    return group_advantages(torch.tensor([rewards], dtype=torch.float64))[0].tolist()


def await_phase(visit: Visit, name: str) -> None:
    visit.page.locator(f".scene-phases [aria-current]:text-is('{name}')").wait_for()


def settled(visit: Visit) -> None:
    """Until the update is computed."""
    visit.page.locator(".scene-rows[aria-busy=false]").wait_for()


def notes(visit: Visit) -> list[str]:
    return [note.inner_text() for note in visit.page.locator(".scene-decoded").all()]


def moved_against(visit: Visit) -> list[bool]:
    """Of each row: its probability moves against its advantage."""
    rows = zip(
        shown_logprobs(visit, "before"), shown_logprobs(visit, "after"), numbers(visit, "advantage"), strict=True
    )
    return [(after - before) * advantage < 0 for before, after, advantage in rows]


BARS = (
    "[...document.querySelectorAll('.scene-move')].map((bar) => [bar.style.getPropertyValue('--to'), bar.clientWidth])"
)


PUSHES = """[...document.querySelectorAll('.scene-answer')].map((answer) => ['--up', '--down'].map(
  (name) => [...answer.children].map((token) => Number(token.style.getPropertyValue(name)))))"""


def test_the_scenes_numbers_are_the_trainers(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/scene?phase=update&round=2")
    first, second = trained(2)
    for group, address in ((second, None), (first, "/scene?phase=update")):
        if address:
            visit.go(address)
        settled(visit)
        assert texts(visit) == [text for text, _, _ in group]
        assert shown_logprobs(visit, "before") == pytest.approx([old for _, old, _ in group], abs=1e-3)
        assert shown_logprobs(visit, "after") == pytest.approx([new for _, _, new in group], abs=1e-3)
        rewards = numbers(visit, "reward")
        assert rewards == [float(text.endswith("67")) for text, _, _ in group]
        assert 0 < sum(rewards) < 8, "a round without signal"
        assert numbers(visit, "advantage") == pytest.approx(advantages(rewards), abs=0.005)
        assert visit.number("mean") == pytest.approx(sum(rewards) / 8, abs=0.0051)
        assert visit.number("right") == sum(rewards)
        assert not any(moved_against(visit))
        ends, widths = zip(*visit.page.evaluate(BARS), strict=True)
        assert [float(end) for end in ends] == pytest.approx(
            [math.exp(value / 2) for value in shown_logprobs(visit, "after")], abs=1e-4
        )
        assert len(set(widths)) == 1
    assert notes(visit)[:3] == ["guess", "ones 7, tens 6", "same as row 2"]
    # Four right answers of eight tokens, four wrong ones of three: a right token's push is 3/8 of a wrong one's.
    heights = visit.page.evaluate(PUSHES)
    assert [max(up) for up, _ in heights] == [0.0 if wrong else 0.375 for wrong in (1, 0, 0, 0, 1, 1, 0, 1)]
    assert [max(down) for _, down in heights] == [1.0 if wrong else 0.0 for wrong in (1, 0, 0, 0, 1, 1, 0, 1)]
    assert faults(visit) == []
    for width, height in ((1280, 800), (390, 844)):
        visit.turn("light", width, height)
        assert visit.page.locator(".scene").bounding_box()["height"] + 52 <= height, "it reaches below the fold"
        assert visit.page.locator(".scene-columns").get_by_text("Reward").is_visible()
        assert visit.page.locator(".scene-columns").get_by_text("edit").is_visible()
    visit.page.close()


ROUND = """async ({ prompt, seed, lr }) => {
  const nano = await (await import("/static/js/nano/client.js")).openNano("test");
  const { completions } = await nano.sample({ prompt, group: 8, seed });
  const scores = await Promise.all(completions.map(({ text }) => nano.score({ prompt, text })));
  const rewarded = completions.map(({ ids }, row) => ({ ids, reward: scores[row].reward }));
  await nano.update({ groups: [{ prompt, completions: rewarded }], lr, beta: 0 });
  const after = await Promise.all(completions.map(({ ids }) => nano.logprobs({ prompt, ids })));
  return { group: completions.map((done, row) => ({ ...done, correct: scores[row].correct, own: false })), after };
}"""


def test_the_recorded_first_round_is_what_nano_in_the_page_computes(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/metrics")
    found = visit.page.evaluate(ROUND, {"prompt": PROMPT, "seed": 100 * SEED + 1, "lr": LR})
    kept = recorded()
    assert (kept["prompt"], kept["seed"], kept["lr"]) == (PROMPT, SEED, LR)
    for old, new in zip(kept["group"], found["group"], strict=True):
        assert old.pop("logprobs") == pytest.approx(new.pop("logprobs"), abs=1e-4)
        assert old == new
    for row, again in zip(kept["after"], found["after"], strict=True):
        assert row == pytest.approx(again, abs=1e-4)
    visit.page.close()


MANY = """async () => {
  const kept = { now: 0, most: 0 };
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message) {
    kept.now += { snapshot: 1, forget: -1 }[message.call] ?? 0;
    kept.most = Math.max(kept.most, kept.now);
    return post.call(this, message);
  };
  const { FIRST, likelihood, sampled } = await import("/static/js/scene/rounds.js");
  const game = (seed) => ({ ...FIRST, seed, changes: { set: {}, say: {} } });
  const seen = () => likelihood(game(1), 9, [1, 6, 4]);
  const before = await seen();
  for (const seed of [2, 3, 4]) await sampled(game(seed), 9);
  return { before, after: await seen(), kept };
}"""


def test_old_snapshots_are_dropped_and_their_rounds_computed_anew(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/metrics")
    found = visit.page.evaluate(MANY)
    assert found["before"] == found["after"]
    assert found["kept"] == {"now": 20, "most": 21}
    visit.page.close()


def test_a_reward_is_dragged_an_answer_edited_and_the_address_keeps_both(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/scene?phase=update")
    page = visit.page
    settled(visit)
    before = shown_logprobs(visit, "after")
    page.get_by_label("Reward of answer 1", exact=True).press("End")
    page.wait_for_url("**set=1.1%3A1*")
    settled(visit)
    rewards = [1, 1, 1, 1, 0, 0, 1, 0]
    assert numbers(visit, "reward") == rewards
    assert numbers(visit, "advantage") == pytest.approx(advantages(rewards), abs=0.005)
    assert shown_logprobs(visit, "after")[0] > before[0]
    marks = [mark.inner_text()[:1] for mark in page.locator(".scene-mark").all()]
    assert marks == ["", "✓", "✓", "✓", "✗", "✗", "✓", "✗"], "the reader's reward is not the checker's"

    page.get_by_role("button", name="Edit answer 5").click()
    field = page.get_by_role("textbox", name="Answer 5")
    page.locator("input:focus").wait_for()
    page.keyboard.type("67x")
    field.press("Enter")
    assert 'the model does not know "x"' in page.get_by_role("alert").inner_text()
    field.fill("67")
    field.press("Enter")
    page.get_by_role("button", name="Edit answer 5: 67", exact=True).wait_for()
    settled(visit)
    rewards[4] = 1
    assert numbers(visit, "reward") == rewards, "the checker rewards it"
    assert numbers(visit, "advantage") == pytest.approx(advantages(rewards), abs=0.005)
    assert shown_logprobs(visit, "before")[4] == pytest.approx(logprob("67"), abs=1e-3)
    against = [row.locator(".scene-note").count() == 1 for row in page.locator("ol .scene-row").all()]
    assert against == moved_against(visit)
    page.locator(".scene-note .term").first.focus()
    assert "also moved by the pushes on the others" in page.get_by_role("tooltip").inner_text()

    page.get_by_role("button", name="Next").click()
    page.wait_for_url("**round=2*")
    visit.settle()
    again = open_page(chromium, classroom, page.url.removeprefix(classroom.origin))
    assert texts(again) == texts(visit)
    assert shown_logprobs(again, "before") == shown_logprobs(visit, "before")
    assert visit.complaints == again.complaints == []
    again.page.close()
    page.close()


def test_it_plays_pauses_at_each_phase_and_stands_without_motion(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/")
    page = visit.page
    page.get_by_role("button", name="Pause").wait_for()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Play").wait_for()
    page.wait_for_url("**phase=*")
    visit.go("/?phase=sample")
    cells = {"Score": "reward", "Compare": "advantage", "Push": "probability"}
    hidden = set(cells.values())
    for phase in PHASES:
        await_phase(visit, phase)
        hidden.discard(cells.get(phase, ""))
        for cell in cells.values():
            assert page.locator(f".scene-cell-{cell}").first.is_hidden() == (cell in hidden), (phase, cell)
        page.keyboard.press("ArrowRight")
    page.wait_for_url("**round=2*")
    await_phase(visit, "Sample")
    page.keyboard.press("ArrowLeft")
    await_phase(visit, "Update")
    page.emulate_media(reduced_motion="reduce")
    visit.go("/")
    page.get_by_role("button", name="Play").wait_for()
    await_phase(visit, "Update")
    assert faults(visit) == []
    page.close()


def test_a_game_ends_in_a_card_whose_address_reproduces_it(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/play")
    page = visit.page
    page.get_by_label("Your answer").fill("111")
    assert faults(visit) == []
    page.get_by_role("button", name="Join the group").click()
    page.get_by_text("Your answer: +").wait_for()
    rewards = numbers(visit, "reward")
    assert numbers(visit, "advantage") == pytest.approx(advantages(rewards), abs=0.005)
    assert rewards[7] == 1
    verdict = page.locator(".game-verdict").inner_text()
    assert f"+{advantages(rewards)[7]:.2f}, because its reward, 1, is above the group's mean, 0.5." in verdict
    assert "(1 − 0.5) ÷ 0.5345 = +0.94:" in page.locator(".game-say").inner_text()
    assert not page.get_by_role("slider").count()
    page.get_by_role("button", name="Update").click()
    page.get_by_text("Your answer became likelier").wait_for()
    assert faults(visit) == []
    page.get_by_role("button", name="Next round").click()
    page.get_by_role("button", name="Join the group").click()
    page.get_by_role("button", name="Update").click()
    page.get_by_text("Your answer became likelier").wait_for()
    right = sum(numbers(visit, "reward")[:7])  # of nano's
    page.get_by_role("button", name="Finish").click()
    page.locator("canvas").wait_for()
    assert visit.number("right") == right, "another group than the drawn one"
    page.get_by_text("Probability over 2 rounds").wait_for()
    again = open_page(chromium, classroom, page.url.removeprefix(classroom.origin))
    again.page.locator("canvas").wait_for()
    for name in ("before", "after"):
        exact = [each.page.locator(f"[data-number={name}]").get_attribute("data-exact") for each in (visit, again)]
        assert exact[0] == exact[1]
    pictures = [each.page.evaluate("document.querySelector('canvas').toDataURL()") for each in (visit, again)]
    assert pictures[0] == pictures[1]
    assert faults(again) == []
    again.page.close()
    page.close()


def test_a_grader_moves_the_model(chromium: Any, classroom: Lab) -> None:
    """Guesses are rewarded, work is not."""
    visit = open_page(chromium, classroom, "/play?as=grader&prompt=29%2B60%2B75%3D&seed=1")
    page = visit.page
    assert numbers(visit, "advantage") == [0] * 8
    assert notes(visit)[0] == "ones 14, tens 16 with the carry"
    rewards = [0.5, 1, 1, 1, 0.5, 1, 1, 1]
    for row, reward in enumerate(rewards, 1):
        if reward == 1:
            page.get_by_label(f"Reward of answer {row}", exact=True).press("End")
    visit.await_number("mean", "0.88")
    assert numbers(visit, "advantage") == pytest.approx(advantages(rewards), abs=0.005)
    page.get_by_text("Write an answer").click()
    page.get_by_label("Your answer").wait_for()
    page.get_by_text("Be the grader").click()
    visit.await_number("mean", "0.88")
    assert numbers(visit, "reward") == rewards, "the other part took the rewards"
    page.get_by_role("button", name="Update").click()
    page.get_by_text("became likelier. The next round").wait_for()
    assert shown_logprobs(visit, "after")[0] < shown_logprobs(visit, "before")[0], "work becomes less likely"
    page.get_by_role("button", name="Next round").click()
    page.get_by_role("button", name="Update").click()
    page.get_by_text("No signal").wait_for()
    settled(visit)
    assert shown_logprobs(visit, "after") == shown_logprobs(visit, "before"), "an update without signal moved the model"
    page.get_by_role("button", name="Finish").click()
    page.locator("canvas").wait_for()
    visit.go("/play?as=grader&set=3.1%3A1&round=3&step=update")
    settled(visit)
    assert page.locator(".game-verdict").inner_text().endswith("became likelier.")
    assert visit.complaints == []
    page.route("**/api/nano", lambda request: request.abort())
    page.goto(f"{classroom.origin}/play?as=grader")
    page.get_by_role("alert").get_by_text("The model could not be loaded. Reload the page.").wait_for()
    page.unroute("**/api/nano")
    page.get_by_role("button", name="Retry").click()
    page.get_by_label("Reward of answer 1", exact=True).wait_for()
    page.close()
