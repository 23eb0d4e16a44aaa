"""TRL's GRPO trainer on the work of arms.py, with HF `generate` or with vLLM in the same process."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from arms import MAX_TURNS, StepLog, Work, forward_flops


def run_trl(work: Work, log: StepLog, vllm: bool = False) -> None:
    os.environ.update(
        HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false", VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="WARNING", TRL_EXPERIMENTAL_SILENCE="1", WANDB_MODE="disabled",
    )  # fmt: skip
    import torch
    from datasets import Dataset, disable_progress_bars
    from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
    from transformers.utils.logging import disable_progress_bar
    from trl import GRPOConfig, GRPOTrainer

    from grpo.model.hub import locate_model
    from grpo.model.plan.shape import find_shape
    from grpo.rewards.place import Place
    from grpo.tasks import load_task

    disable_progress_bars()
    disable_progress_bar()
    torch.set_num_threads(work.threads or os.cpu_count() or 1)
    folder, task, shape = locate_model(work.model), load_task(work.task), find_shape(work.model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    problems = [problem for step in range(work.steps) for problem in task.draw(step, work.prompts, work.seed)]

    def prompt_of(problem: Any) -> Any:
        conversational = problem.messages and tokenizer.chat_template
        return [dict(message) for message in problem.messages] if conversational else problem.prompt

    def rows(first: int, some: Sequence[Any]) -> Any:
        return Dataset.from_list([{"prompt": prompt_of(problem), "row": first + i} for i, problem in enumerate(some)])

    heldout = task.heldout()[: work.heldout]
    asked = [*problems, *heldout]
    phases: dict[str, float] = {}
    batch: dict[str, Any] = {}
    evaluated: list[float] = []

    def reward(completions: Sequence[Any], completion_ids: Sequence[Any], row: Sequence[int], **_: Any) -> list[float]:
        texts = [done if isinstance(done, str) else done[-1]["content"] for done in completions]
        parts = [task.score(asked[i], text) for i, text in zip(row, texts, strict=True)]
        rewards = [sum(part for part in each.values() if part is not None) for each in parts]
        if row[0] >= len(problems):
            evaluated.extend(rewards)
            return rewards
        batch["rewards"], batch["lengths"] = rewards, [len(ids) for ids in completion_ids]
        batch["calls"] = [
            sum(isinstance(each, dict) and each["role"] == "tool" for each in done) for done in completions
        ]
        return rewards

    def timed(phase: str, function: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            result = function(*arguments, **options)
            phases[phase] = phases.get(phase, 0.0) + time.perf_counter() - begin
            return result

        return run

    class Watch(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            log.begin()

        def on_evaluate(self, *_: Any, **__: Any) -> None:
            log.begin(statistics.fmean(evaluated))
            evaluated.clear()
            phases.clear()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if work.device == "cuda":
                torch.cuda.synchronize()
            prompts = batch.setdefault("prompt", prompt_tokens(tokenizer, prompt_of(problems[0])))
            layout = [(prompts, [length]) for length in batch["lengths"]]
            forward = forward_flops(shape, layout)
            # The correction for vLLM's log-probabilities needs another forward pass.
            passes = 3 + (1 if work.beta else 0) + (1 if vllm and args.vllm_importance_sampling_correction else 0)
            shared = [(prompts, batch["lengths"][i : i + work.group]) for i in range(0, len(layout), work.group)]
            flops = {"rollout": forward_flops(shape, shared) if vllm else forward, "update": passes * forward}
            spent = {name: phases.pop(name) for name in ("rollout", "reward")}
            spent["update"] = time.perf_counter() - log.last - sum(spent.values())
            means = [statistics.fmean(batch[name]) for name in ("rewards", "lengths")]
            control.should_training_stop = log.add(*means, spent, flops, calls=statistics.fmean(batch["calls"]))

    with tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(
            model=folder,
            reward_funcs=reward,
            args=GRPOConfig(**(trl_settings(work, vllm) | {"output_dir": output})),
            train_dataset=rows(0, problems),
            eval_dataset=rows(len(problems), heldout) if heldout else None,
            tools=[Place.parse(work.tools, "tool").load()] if work.tools else None,
            processing_class=tokenizer,
            callbacks=[Watch()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer._generate = timed("rollout", trainer._generate)
        trainer._calculate_rewards = timed("reward", trainer._calculate_rewards)
        trainer.train()


def trl_settings(work: Work, vllm: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": work.micro_batch or work.prompts * work.group,
        "num_generations": work.group,
        "max_completion_length": work.new,
        "max_steps": work.steps,
        "learning_rate": work.lr,
        "lr_scheduler_type": "constant",
        "beta": work.beta,
        "temperature": 1.0,
        "seed": work.seed,
        "shuffle_dataset": False,
        "bf16": work.device == "cuda",
        "use_cpu": work.device == "cpu",
        "model_init_kwargs": {"dtype": "float32"},
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    if vllm:
        settings |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}
        if work.prompt_tokens:
            settings["vllm_max_model_length"] = work.prompt_tokens + work.new + 64
    if work.tools:
        settings["max_tool_calling_iterations"] = MAX_TURNS - 1
    if work.heldout:
        settings |= {
            "eval_strategy": "steps" if work.every else "no",
            "eval_steps": work.every or None,
            "eval_on_start": True,
            "num_generations_eval": 1,
            "per_device_eval_batch_size": work.heldout,
        }
    for setting in work.trl:
        name, _, value = setting.partition("=")
        settings[name] = json.loads(value)
    # Smaller micro-batches: the same number of completions per update.
    settings["gradient_accumulation_steps"] = work.prompts * work.group // settings["per_device_train_batch_size"]
    return settings


def prompt_tokens(tokenizer: Any, prompt: Any) -> int:
    """Tokens of one prompt. The prompts of a task have about the same length."""
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    return len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"])
