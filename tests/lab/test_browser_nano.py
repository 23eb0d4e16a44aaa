"""nano in the page: the worker's samples, log-probabilities, scores and gradients against the trainer's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from grpo.lab.chapters.nano import nano, sampled, sum_of_three
from grpo.tasks.arithmetic import Arithmetic
from helpers.visit import Lab, Visit, open_page

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
    with pytest.raises(Exception, match='nano does not know "é"; it knows 0123'):
        call(visit, "encode", "1é")
    assert visit.complaints == []
    visit.page.close()
