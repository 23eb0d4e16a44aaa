"""The first round of the landing scene, recorded: the page shows it before it has nano's weights."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from grpo.config import Config
from grpo.config.schema import resolve
from grpo.lab.catalogue import RECORDINGS

FILE = RECORDINGS / "first-round.json"
"""Made by `scripts/record_first_round.py`. A file, because importing torch takes seconds and this page comes first."""
GAME: dict[str, Any] = {"prompt": "31+15+21=", "seed": 3, "lr": 3e-4}
"""Equal to `FIRST` of static/js/scene/rounds.js."""


def recorded() -> dict[str, Any]:
    """What `computed` returned."""
    round_one: dict[str, Any] = json.loads(FILE.read_text())
    return round_one


def computed() -> dict[str, Any]:
    """The game, its first group as static/js/scene/rounds.js has it, and the log-probabilities after the update."""
    from grpo.lab.chapters.nano import LONGEST, fresh_nano, nano, sum_of_three
    from grpo.lab.chapters.update import one_update, seen_by
    from grpo.model.optimizer import make_optimizer

    base = Config(model="nano", prompts_per_step=1, group_size=8, lr=GAME["lr"], max_new_tokens=LONGEST)
    # The seed of a round: `seedOf` of rounds.js.
    config = resolve(replace(base, seed=100 * GAME["seed"] + 1, loss=replace(base.loss, beta=0.0)))
    with nano() as before, fresh_nano() as student:
        optimizer = make_optimizer(student.policy, config.optimizer)
        *_, pause = one_update(student, before.policy, optimizer, [sum_of_three(GAME["prompt"])], config)
        [after] = seen_by(student.policy, pause.groups, config)
        decode = student.policy.tokenizer.batch_decode
        group = [
            {
                "text": done.text,
                "ids": done.tokens.tolist(),
                "tokens": decode([[token] for token in done.tokens]),
                "logprobs": done.logprobs.tolist(),
                "finished": done.finish == "stop",
                "correct": done.reward == 1,
                "own": False,
            }
            for done in pause.groups[0].completions
        ]
    return {**GAME, "group": group, "after": [done.logprobs.tolist() for done in after.completions]}
