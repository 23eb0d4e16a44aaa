"""Three checkers (grpo, math-verify, TRL's accuracy_reward) on the same answers: the gold answers of GSM8K in twelve
usual forms, and difficult cases.

    python benchmarks/answers.py gsm8k/train.jsonl [COUNT]

prints the tables of docs/rewards.md. Needs math-verify and trl.
"""

from __future__ import annotations

import argparse
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
from helpers.answer_cases import LENIENT_ONLY, RIGHT, WRONG

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="rows of GSM8K")
    parser.add_argument("count", type=int, nargs="?", help="number of gold answers; default: all")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    problems = load_task("gsm8k", arguments.data).problems()[: arguments.count]
    print(f"{len(problems)} gold answers of {Path(arguments.data).name}: share of correct verdicts by form\n")
    seconds, count, rows = dict.fromkeys(CHECKERS, 0.0), 0, []
    for form in FORMS:
        pairs = [(problem.answer.replace(",", ""), text) for problem, text in in_form(problems, form)]
        shares = []
        for name, judge in CHECKERS.items():
            start = time.process_time()
            right = sum(judge(gold, text) for gold, text in pairs)
            seconds[name] += time.process_time() - start
            shares.append(f"{right / len(pairs):.1%}")
        count += len(pairs)
        rows.append((f"`{in_form([problems[0]], form)[0][1]}`", *shares))
    rows.append(("milliseconds of CPU time each", *(f"{1e3 * spent / count:.2f}" for spent in seconds.values())))
    table(rows)
    print("difficult cases: number of correct verdicts\n")
    kinds = {"right": (RIGHT, True), "right, in free text": (LENIENT_ONLY, True), "wrong": (WRONG, False)}
    table(
        [
            (
                f"{kind} ({len(cases)})",
                *(sum(judge(*case) is truth for case in cases) for judge in CHECKERS.values()),
            )
            for kind, (cases, truth) in kinds.items()
        ]
    )


if __name__ == "__main__":
    main()
