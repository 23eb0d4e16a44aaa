"""A small model learns to use a calculator: grpo, and TRL with the same tool, prompts, problems and settings.

python benchmarks/tools.py --peer trl
python benchmarks/tools.py --model FOLDER --prompts 2 --group 4 --steps 3 --heldout 4 --every 2 --peer trl

The questions are products of three digits after one worked example (examples/tools/calculator.py). A call is an
expression in brackets, which the model writes from the start. Both trainers read it by the `response_template` of the
model's folder, which is made here from --model: the same weights, with a chat template that writes calls and answers as
the worked example does.

Accuracy is the training reward, 1 for a right answer: every step has new problems. Held-out accuracy is measured every
--every steps, before a step; neither loading nor evaluations count as time. As with learn.py, existing files in --out
are reused.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from arms import add_options, parse_work, read_steps
from flags import Parser
from learn import compare, load_curves, run_all, steps_file

CALCULATOR = Path(__file__).parents[1] / "examples/tools/calculator.py"
CHAT_TEMPLATE = """\
{#- The worked example shows what the tools are: they are not described. -#}
{%- set described = tools %}
{%- for message in messages %}
    {{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' + (message.content or '') }}
    {%- for each in message.tool_calls or [] %}
        {%- set call = each.function or each %}
        {%- if call.name == 'calculate' %}
            {{- '[' ~ call.arguments.expression ~ ']' }}
        {%- else %}
            {{- '[' ~ call.name ~ ' ' ~ (call.arguments | tojson) ~ ']' }}
        {%- endif %}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
CALL = {"name": "calculate", "arguments": {"expression": "{content}"}}
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "[",
            "close": "]",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": CALL},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def main() -> None:
    parser = Parser(__doc__)
    add_options(parser, model="smollm2", task=f"{CALCULATOR}:Questions", prompts=64, group=16, new=48, steps=101)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from 1 on")
    parser.add_argument("--reach", type=float, default=0.9, help="accuracy whose time is measured")
    parser.add_argument("--heldout", type=int, default=256, help="held-out problems of an evaluation")
    parser.add_argument("--every", type=int, default=20, help="steps between evaluations")
    parser.add_argument("--seconds", type=float, default=0.0, help="time limit of each trainer's steps; 0: no limit")
    parser.add_argument("--out", type=Path, default=Path("tools"), help="folder of the model and the recorded steps")
    parser.add_argument("--minutes", type=float, default=0.0, help="start no process that would end later; 0: no limit")
    arguments = parser.parse_args()
    tool = {"tools": f"{CALCULATOR}:calculate", "heldout": arguments.heldout, "every": arguments.every}
    arms, work = parse_work(arguments, seconds=arguments.seconds, **tool)
    work = replace(work, model=str(with_calls(work.model, arguments.out / "model")))
    remaining = run_all(arms, work, arguments.seeds, arguments.out, arguments.minutes)
    curves = {arm: found for arm in arms if (found := load_curves(arm, work, arguments.seeds, arguments.out))}
    report = {"work": vars(work), "reach": arguments.reach, "remaining": remaining, **compare(curves, arguments.reach)}
    for arm, by_seed in curves.items():
        steps = [read_steps(steps_file(arm, work, int(seed), arguments.out)) for seed in by_seed]
        report["results"][arm]["seeds"] = [summary(each) for each in steps]
    (arguments.out / "tools.json").write_text(json.dumps(report | {"curves": curves}))
    print(json.dumps(report) if arguments.json else table(report))


def with_calls(model: str, folder: Path) -> Path:
    """A folder with the model's files, and with a tokenizer that writes and reads calls in brackets."""
    from grpo.model.hub import locate_model

    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(locate_model(model), folder, copy_function=_link)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").unlink()  # it may be a link to the model's own
    settings = {name: value for name, value in settings.items() if name != "chat_template"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"response_template": RESPONSE_TEMPLATE}))
    return folder.resolve()


def _link(source: str, target: str) -> None:
    if Path(source).suffix == ".safetensors":
        os.symlink(Path(source).resolve(), target)
    else:
        shutil.copy(source, target)


def summary(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Start and end of a run, and its curve: (seconds of training, calls per completion, held-out accuracy) by
    evaluation.

    >>> rows = [{"seconds": 2.0, "calls": c, "heldout": h, "reward": r, "decoding": "StepDecoding", "start_seconds": 1}
    ...         for c, h, r in [(0.5, 0.1, 0.1), (0.75, None, 0.5), (1.0, 0.9, 1.0)]]
    >>> summary(rows)["evaluations"], summary(rows)["calls"]
    ([(0.0, 0.5, 0.1), (4.0, 1.0, 0.9)], (0.5, 1.0))
    """
    spent, evaluations = 0.0, []
    for step in steps:
        if step["heldout"] is not None:
            evaluations.append((round(spent, 2), round(step["calls"], 3), round(step["heldout"], 4)))
        spent += step["seconds"]
    return {
        "steps": len(steps),
        "seconds": round(spent, 2),
        "start_seconds": steps[0]["start_seconds"],
        "accuracy": (steps[0]["reward"], steps[-1]["reward"]),
        "calls": (steps[0]["calls"], steps[-1]["calls"]),
        "evaluations": evaluations,
        "decoding": steps[-1]["decoding"],
    }


def table(report: Mapping[str, Any]) -> str:
    work, reach = report["work"], report["reach"]
    lines = [f"{work['prompts']}x{work['group']}, at most {work['new']} tokens, lr {work['lr']:g}, {work['device']}"]
    for arm, row in report["results"].items():
        ratio = f", ratio {row['ratio']}" if "ratio" in row else ""
        for (seed, hit), one in zip(row["reached"].items(), row["seeds"], strict=True):
            reached = f"step {hit['step']}, {hit['seconds']:.1f} s" if hit else "never"
            first, last = one["accuracy"]
            lines += [
                f"{arm}, seed {seed}: accuracy {reach} at {reached}{ratio}; {one['steps']} steps in {one['seconds']} s "
                f"after {one['start_seconds']} s to start; decoding {one['decoding'] or 'its own'}",
                f"  accuracy {first:.3f} to {last:.3f}, calls {one['calls'][0]:.2f} to {one['calls'][1]:.2f}",
                *(f"  {s:7.1f} s  calls {calls:.2f}  held out {held:.3f}" for s, calls, held in one["evaluations"]),
            ]
    return "\n".join([*lines, *(f"not run yet: {one}" for one in report["remaining"])])


if __name__ == "__main__":
    main()
