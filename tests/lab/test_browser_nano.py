"""nano in the page: the worker's samples, log-probabilities, scores and gradients against the trainer's."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from grpo.config import Config
from grpo.config.schema import resolve
from grpo.core import group_advantages
from grpo.lab.chapters.nano import LONGEST, fresh_nano, nano, sampled, sum_of_three
from grpo.lab.chapters.update import one_update
from grpo.model.optimizer import make_optimizer, take_step
from grpo.model.policy import Policy
from grpo.record.trace import Traces
from grpo.tasks.arithmetic import Arithmetic
from grpo.training.gradient import accumulate_gradients
from helpers.visit import Lab, Visit, faults, open_page

pytestmark = pytest.mark.browser

CLIENT = "import('/static/js/nano/client.js').then((client) => client.openNano())"
ODD = [
    "",
    ")",
    "()",
    "168",
    " 168\n",
    "(18;16)168",
    "\x1c168\x85",
    "\ufeff168",
    "168 )",
    "(168",
    "0168",
    "168.0",
    "１６８",
    "a\u2028168",
]


def call(visit: Visit, method: str, argument: Any) -> Any:
    return visit.page.evaluate(f"(argument) => {CLIENT}.then((nano) => nano.{method}(argument))", argument)


def test_the_page_samples_and_scores_as_the_trainer(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/metrics")
    rng = random.Random(3)
    prompts = [f"{'+'.join(str(rng.randint(10, 99)) for _ in range(3))}=" for _ in range(12)]
    for prompt, temperature in zip(prompts, [1.0] * 9 + [0.5, 1.5, 0.0], strict=True):
        [group] = sampled([sum_of_three(prompt)], 16, seed=5, temperature=temperature)
        page = call(visit, "sample", {"prompt": prompt, "group": 16, "seed": 5, "temperature": temperature})
        for done, found in zip(group.completions, page["completions"], strict=True):
            assert (done.text, done.tokens.tolist()) == (found["text"], found["ids"])
            assert found["finished"] == (done.finish == "stop")
            np.testing.assert_allclose(found["logprobs"], done.logprobs, atol=1e-4)

    ids = page["completions"][0]["ids"]
    again = call(visit, "logprobs", {"prompt": prompt, "ids": ids})
    np.testing.assert_allclose(
        again, call(visit, "sample", {"prompt": prompt, "temperature": 0})["completions"][0]["logprobs"], atol=1e-6
    )
    likeliest = call(visit, "next", {"prompt": prompt, "ids": ids[:2], "count": 3})
    assert likeliest[0]["id"] == ids[2]
    assert likeliest[0]["probability"] == pytest.approx(np.exp(again[2]), abs=1e-6)

    task = Arithmetic("easy")
    answers = [sum_of_three(prompt).answer for prompt in prompts]
    made = [
        rng.choice(["", "(1;2)", "(((", ")"])
        + rng.choice([answer, answer[::-1], "7"])
        + rng.choice(["", " ", "\t", "9"])
        for answer in answers * 24
    ]
    texts = [*zip(prompts * 24, made, strict=True), *(("37+85+46=", text) for text in ODD)]
    assert len(texts) > 300
    scores = visit.page.evaluate(
        f"(texts) => {CLIENT}.then((nano) => Promise.all(texts.map(([prompt, text]) => nano.score({{prompt, text}}))))",
        texts,
    )
    for (prompt, text), found in zip(texts, scores, strict=True):
        problem = sum_of_three(prompt)
        assert (found["correct"], found["extracted"]) == (task.is_correct(problem, text), task.extract(text)), repr(
            text
        )
        assert found["worked"] == bool(task.traits(problem, text)["worked"])

    with nano() as loaded:
        tokenizer = loaded.policy.tokenizer
        known = "".join(token for token in tokenizer.get_vocab() if len(token) == 1) * 2
        ids = call(visit, "encode", known)
        assert ids == tokenizer(known)["input_ids"]
        assert call(visit, "decode", [*ids, 17, 18]) == tokenizer.decode([*ids, 17, 18]) == f"{known}<pad><end>"
    with pytest.raises(Exception, match='the model does not know "é"; it knows 0123'):
        call(visit, "encode", "1é")
    assert visit.complaints == []
    visit.page.close()


UPDATES = """async ({ weights, groups, settings }) => {
  const [{ Student }, { shapeOf }, { Vocabulary }, { readSafetensors }, { gradientOf }] = await Promise.all(
    ["student", "model", "vocabulary", "weights", "gradient"].map((name) => import(`/static/js/nano/${name}.js`)));
  const files = await (await fetch("/api/nano")).json();
  const read = (base64) => readSafetensors(Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)));
  const vocabulary = new Vocabulary(files.vocabulary, files.config.eos_token_id);
  const student = new Student({ shape: shapeOf(files.config), vocabulary, weights: read(files.weights) });
  student.model.weights = read(weights);
  const prompts = groups.map((group) => ({ ...group, prompt: student.vocabulary.encode(group.prompt) }));
  const { gradient } = gradientOf(student.model, student.reference, prompts, { longest: 24, ...settings });
  const steps = [1, 2].map(() => student.update({ groups, ...settings }));
  const { shapes, flat } = student.model.weights;
  const rows = Object.values(gradient.of).map((each) => [...each]);
  return JSON.stringify({ names: Object.keys(shapes), gradient: rows, steps, after: [...flat] });
}"""


def difference(found: Any, expected: Any) -> float:
    """Relative, in the L2 norm."""
    return float(np.linalg.norm(np.subtract(found, expected)) / np.linalg.norm(expected))


def flat(policy: Policy) -> np.ndarray:
    """All weights, in the order of the file."""
    return np.concatenate([weight.numpy().ravel().copy() for _, weight in sorted(policy.weights().items())])


@pytest.mark.parametrize(
    ("algorithm", "settings"), [("grpo", {}), ("dr_grpo", {"beta": 0, "scale": "none", "aggregate": "constant"})]
)
def test_the_page_has_the_trainers_gradient(
    chromium: Any, classroom: Lab, algorithm: str, settings: dict[str, Any]
) -> None:
    """Of 8 x 8 completions, by a policy that has left its reference; then two updates with that batch."""
    visit = open_page(chromium, classroom, "/metrics")
    config = resolve(Config(model="nano", algorithm=algorithm, lr=1e-3, max_new_tokens=LONGEST))
    problems = Arithmetic("easy").draw(0, 16, 1)
    with nano() as before, fresh_nano() as student:
        policy, optimizer = student.policy, make_optimizer(student.policy, config.optimizer)
        list(one_update(student, before.policy, optimizer, problems[:8], config))
        _, _, compared, *_ = one_update(student, before.policy, optimizer, problems[8:], replace(config, lr=0.0))
        weights, start = save(policy.weights()), flat(policy)
        optimizer, gradients, measured = make_optimizer(policy, config.optimizer), [], []
        for _ in range(2):
            traces = Traces(compared.groups, count=len(problems))
            found = accumulate_gradients(policy, compared.groups, config, traces=traces)
            gradients.append({name: weight.grad.numpy().copy() for name, weight in policy.trainable()})
            norm = take_step(policy, optimizer, lr=1e-4, grad_clip=config.optimizer.grad_clip)
            measured.append((traces.add_to(compared.groups), found.metrics()["loss"], norm))
        groups = [
            {
                "prompt": group.problem.prompt,
                "completions": [{"ids": done.tokens.tolist(), "reward": done.reward} for done in group.completions],
            }
            for group in compared.groups
        ]
        given = {"weights": b64encode(weights).decode(), "groups": groups, "settings": settings}
        page = json.loads(visit.page.evaluate(UPDATES, given))
        assert page["names"] == sorted(gradients[0])
        for name, found_of_page in zip(page["names"], page["gradient"], strict=True):
            assert difference(found_of_page, gradients[0][name].ravel()) < 1e-4, name
        for step, (groups_after, loss, norm) in zip(page["steps"], measured, strict=True):
            assert step["loss"] == pytest.approx(loss, abs=1e-5)
            assert step["gradNorm"] == pytest.approx(norm, rel=1e-4)
            advantages = [[done.advantages[0] for done in group.completions] for group in groups_after]
            np.testing.assert_allclose(step["advantages"], advantages, rtol=1e-5)
        # Adam divides by the gradient's size, so that a gradient near 0 may round to either sign.
        assert difference(np.subtract(page["after"], start), flat(policy) - start) < 0.01
    assert visit.complaints == []
    visit.page.close()


TRAINING = """async () => {
  const nano = await (await import("/static/js/nano/client.js")).openNano();
  const before = await nano.logprobs({ prompt: "37+85+46=", ids: [1, 6, 8] });
  const kept = await nano.snapshot();
  const steps = [];
  const done = await nano.train({ steps: 15, seed: 2 }, (step) => steps.push(step)).done;
  const moved = await nano.logprobs({ prompt: "37+85+46=", ids: [1, 6, 8] });
  await nano.restore(kept);
  const after = await nano.logprobs({ prompt: "37+85+46=", ids: [1, 6, 8] });
  return { done, steps, before, moved, after };
}"""


def test_training_in_the_page(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/train")
    page = visit.page
    part = page.locator(".train-here")
    part.get_by_role("button", name="Train the model").click()
    page.locator(".train-here:not([data-steps='0']):not([data-steps='1'])").wait_for()
    part.get_by_role("button", name="Stop").click()
    page.locator(".train-here[data-status=stopped]").wait_for()
    cells = [row.locator("td").all_inner_texts() for row in part.locator("table").first.locator("tbody tr").all()]
    rewards = torch.tensor([[float(reward) for _, reward, _ in cells]])
    shown = [float(advantage.replace("−", "-").replace("+", "")) for *_, advantage in cells]
    np.testing.assert_allclose(shown, group_advantages(rewards)[0], atol=0.005)
    assert any(shown)
    visit.settle()
    assert faults(visit) == []
    before = part.get_attribute("data-steps") or ""
    part.get_by_role("button", name="Train 30 more steps").click()
    page.locator(f".train-here:not([data-steps='{before}'])").wait_for()
    steps, bar = part.evaluate("(part) => [Number(part.dataset.steps), part.querySelector('progress').value]")
    assert bar == steps - int(before)
    part.get_by_role("button", name="Stop").click()
    page.locator(".train-here[data-status=stopped]").wait_for()
    part.get_by_role("button", name="Reset").click()
    page.locator(".train-here[data-steps='0']").wait_for()

    found = page.evaluate(TRAINING)
    assert found["done"] == len(found["steps"]) == 15
    assert found["before"] == found["after"] != found["moved"]
    first, last = (np.mean([step["accuracy"] for step in part]) for part in (found["steps"][:5], found["steps"][-5:]))
    assert first < 0.45 < 0.55 < last
    visit.page.close()
