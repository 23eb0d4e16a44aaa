"""Predicted and measured peak memory of real training steps, for models with random weights.

python benchmarks/plan.py --shapes smollm2-135m,qwen2.5-1.5b --algorithms grpo,ppo --dtype bfloat16 [--json]

On a GPU the peak is torch.cuda.max_memory_allocated. On a CPU it comes from torch's profiler, which sees every
allocation.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import zlib
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import torch
import transformers
from noise import add_noise_task, letter_tokenizer
from torch.profiler import ProfilerActivity, profile

import grpo.training.session
from grpo.config import Config, Evaluation, Optimizer, System
from grpo.model.device import pick_device
from grpo.model.plan import GIB, Shape, find_shape
from grpo.training.loop import loop
from grpo.training.memory_check import predicted_memory
from grpo.training.session import Session


def save_random_model(shape: Shape, dtype: str, folder: str) -> None:
    """Saves random weights and a tokenizer."""
    family = "Qwen2" if shape.qkv_bias else "Qwen3" if shape.qk_norm else "Llama"
    config = getattr(transformers, f"{family}Config")(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_width,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32768,
        bos_token_id=None,
        eos_token_id=2,
    )
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16 if dtype == "bfloat16" else torch.float32
    )
    assert sum(weight.numel() for weight in model.parameters()) == shape.parameters
    model.save_pretrained(folder)
    letter_tokenizer(shape.vocabulary).save_pretrained(folder)


def measure(shape: Shape, model: str, algorithm: str, arguments: argparse.Namespace, runs: str) -> dict[str, Any]:
    """Trains, and returns predicted and measured peak memory in bytes."""
    config = Config(
        model=model,
        task="noise",
        algorithm=algorithm,
        run=f"{algorithm}-{zlib.crc32(model.encode())}",
        steps=arguments.steps,
        prompts_per_step=arguments.prompts,
        group_size=arguments.group,
        max_new_tokens=arguments.new,
        lr=1e-6,
        checkpoint_every=0,
        optimizer=Optimizer(minibatches=arguments.minibatches),
        evaluation=Evaluation(every=0, problems=2, probes=0),
        system=System(runs=runs, dtype=arguments.dtype, token_budget=arguments.token_budget, device=arguments.device),
    )
    if algorithm == "ppo":  # policy and critic learn from the first step
        config = Config(**{**vars(config), "critic": type(config.critic)(warmup_steps=0)})
    session = Session.start(config)
    session.checkpoint = lambda *_, **__: None  # type: ignore[method-assign]  # no checkpoints
    models = [session.policy, session.reference, session.critic and session.critic.body]
    loaded = sum(weight.nbytes for each in models if each is not None for weight in each.model.parameters())

    def train() -> None:
        with session.recorded():
            loop(session)

    if session.policy.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        train()
        measured = torch.cuda.max_memory_allocated()
    else:
        measured = loaded + peak_on_cpu(train)
    predicted = predicted_memory(config, shape, arguments.prompt_tokens, torch.device(pick_device(config.system)))
    lengths = [value for _, value in session.run.series("length_mean")]
    session.run.close()
    return {
        "parameters": shape.parameters,
        "algorithm": algorithm,
        "predicted": predicted.peak,
        "measured": measured,
        "ratio": round(predicted.peak / measured, 4),
        "phases": dict(predicted.phases),
        "mean_length": sum(lengths) / len(lengths),
        "reserved": torch.cuda.max_memory_reserved() if session.policy.device.type == "cuda" else None,
    }


def peak_on_cpu(work: Callable[[], None]) -> int:
    """Largest number of bytes that `work` has allocated at a time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        work()
    events = recording.profiler.kineto_results.events()
    return max(accumulate((event.nbytes() for event in events if event.name() == "[memory]"), initial=0))


def measure_all(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    transformers.utils.logging.disable_progress_bar()
    add_noise_task(arguments.prompt_tokens)
    grpo.training.session.check_disk = lambda *_: None  # checkpoints are off
    rows = []
    for name in arguments.shapes.split(","):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            shape = find_shape(name)
            save_random_model(shape, arguments.dtype, folder)
            for algorithm in arguments.algorithms.split(","):
                with tempfile.TemporaryDirectory() as runs:
                    rows.append({"shape": name, **measure(shape, folder, algorithm, arguments, runs)})
                gc.collect()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                if not arguments.json:
                    show(rows[-1])
    return rows


def show(row: Mapping[str, Any]) -> None:
    print(
        f"{row['shape']:14} {row['algorithm']:6} predicted {row['predicted'] / GIB:8.3f} GiB, measured "
        f"{row['measured'] / GIB:8.3f} GiB, ratio {row['ratio']:.3f}, mean length {row['mean_length']:.0f}",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="smollm2-135m,qwen2.5-1.5b", help="names of grpo plan, with commas")
    parser.add_argument("--algorithms", default="grpo,ppo", help="presets, separated by commas")
    parser.add_argument("--dtype", default="bfloat16", choices=["mixed", "float32", "bfloat16"])
    parser.add_argument("--device", default="auto", help="as system.device")
    parser.add_argument("--prompts", type=int, default=8, help="prompts per step")
    parser.add_argument("--group", type=int, default=8, help="completions per prompt")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=256, help="most new tokens of a completion")
    parser.add_argument("--token-budget", type=int, default=16384, help="tokens per micro-batch")
    parser.add_argument("--minibatches", type=int, default=1, help="optimizer steps per batch")
    parser.add_argument("--steps", type=int, default=2, help="training steps")
    parser.add_argument("--folder", default=None, help="folder for the temporary model files")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parsed = parser.parse_args()
    found = measure_all(parsed)
    if parsed.json:
        machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        print(json.dumps({"machine": machine, "rows": found}))
