"""Three checkers on the same answers: golds of GSM8K in twelve usual forms, judged by grpo, by math-verify alone and by
TRL's accuracy_reward; then the cases on which checkers are known to fail.

    python benchmarks/answers.py gsm8k/train.jsonl [HOW_MANY_GOLDS]

prints the tables of docs/rewards.md. Needs math-verify and trl.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from math_verify import parse, verify
from trl.rewards import accuracy_reward

from grpo.cli.trial_answers import FORMS, in_form
from grpo.tasks import load_task
from grpo.tasks.checkers.answers import check

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.answer_cases import LENIENT_ONLY, RIGHT, WRONG  # the cases the tests hold

Checker = Callable[[str, str], bool]


def math_verify(gold: str, text: str) -> bool:
    return bool(verify(parse(gold), parse(text)))


def trl(gold: str, text: str) -> bool:
    [reward] = accuracy_reward([[{"role": "assistant", "content": text}]], [gold])
    return reward == 1.0


CHECKERS: dict[str, Checker] = {
    "grpo": lambda gold, text: check(text, gold).right,
    "math-verify": math_verify,
    "TRL": trl,
}


def table(rows: Sequence[Sequence[object]]) -> None:
    print(f"| | {' | '.join(CHECKERS)} |\n|---|{'---|' * len(CHECKERS)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    print()


def main() -> None:
    logging.disable(logging.WARNING)
    task = load_task("gsm8k", sys.argv[1])
    problems = task.problems()[: int(sys.argv[2]) if len(sys.argv) > 2 else None]
    print(f"{len(problems)} golds of {Path(sys.argv[1]).name}: share of each form that scores 1\n")
    seconds, asked, rows = dict.fromkeys(CHECKERS, 0.0), 0, []
    for form in FORMS:
        pairs = [(problem.answer.replace(",", ""), text) for problem, text in in_form(problems, form)]
        shares = []
        for name, judge in CHECKERS.items():
            start = time.perf_counter()
            right = sum(judge(gold, text) for gold, text in pairs)
            seconds[name] += time.perf_counter() - start
            shares.append(f"{right / len(pairs):.1%}")
        asked += len(pairs)
        rows.append((f"`{in_form([problems[0]], form)[0][1]}`", *shares))
    rows.append(("milliseconds each", *(f"{1e3 * spent / asked:.2f}" for spent in seconds.values())))
    table(rows)
    print("cases, and how many are judged rightly\n")
    kinds = {"right": (RIGHT, True), "right, in free text": (LENIENT_ONLY, True), "wrong": (WRONG, False)}
    table(
        [
            (f"{kind} ({len(cases)})", *(sum(judge(*case) is wanted for case in cases) for judge in CHECKERS.values()))
            for kind, (cases, wanted) in kinds.items()
        ]
    )


if __name__ == "__main__":
    main()
