"""Sampled tokens per second: grpo and other engines on the same work.

python benchmarks/rollout.py --shape smollm2-135m --prompts 64 --group 16 --prompt-tokens 64 --new 128 --peers hf,vllm
python benchmarks/rollout.py --model smollm2 --device cpu --prompts 4 --group 8 --prompt-tokens 50 --new 32 --peers hf

--shape takes random weights, --model a real model. --uneven ends each completion of grpo at a random length, on average
a third of the limit: uniform, or geometric and truncated at the limit. Peers that are not installed are left out. On a
GPU each engine has its own process. On a CPU they take turns in one process, so that other load slows all of them. The
fastest round of each counts. The ratio is grpo's tokens per second divided by the peer's; the floor is the time to read
all weights and cached keys and values once per token.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MEMORY_BANDWIDTH = 4.3e12
"""Bytes per second of an H200, measured with a copy."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="smollm2-135m", help="model shape of shapes.py, with random weights")
    parser.add_argument("--model", default="", help="name or folder of a real model, instead of a shape")
    parser.add_argument("--prompts", type=int, default=64, help="number of prompts")
    parser.add_argument("--group", type=int, default=16, help="completions per prompt")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=128, help="most new tokens of a completion")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--dtype", default="", help="precision of grpo; default: mixed on a GPU, float32 on a CPU")
    parser.add_argument("--peers", default="", help="hf, vllm, or both separated by a comma")
    parser.add_argument("--uneven", choices=("", "geometric", "uniform"), default="", help="distribution of lengths")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each engine; the first does not count")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; default: one per core")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--engine", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.uneven and arguments.device != "cuda":
        parser.error("--uneven: works only on a GPU; leave it out, or use --device cuda")
    if arguments.engine:
        engine = ENGINES[arguments.engine](arguments)
        print("RESULT " + json.dumps(measure(arguments, [engine])[0]), flush=True)
        return
    peers = [peer for peer in arguments.peers.split(",") if peer]
    absent = [peer for peer in peers if importlib.util.find_spec({"hf": "transformers"}.get(peer, peer)) is None]
    names = [name for name in ["grpo", *peers] if name not in absent]
    if arguments.device == "cpu":
        results = dict(zip(names, measure_in_turns(arguments, names), strict=True))
    else:
        results = {name: measure_in_process(name) for name in names}
    ours = results["grpo"]["tokens_per_second"]
    for name, result in results.items():
        result["ratio"] = round(ours / result["tokens_per_second"], 2) if name != "grpo" else 1.0
    report = {"work": vars(arguments), "results": results, "absent": absent, "machine": machine()}
    print(json.dumps(report) if arguments.json else table(report))


def measure_in_process(engine: str) -> dict[str, Any]:
    """Measures an engine in its own process. In one process, engines would share memory and settings."""
    done = subprocess.run([sys.executable, *sys.argv, "--engine", engine], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    sys.exit(f"{engine} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def measure_in_turns(work: argparse.Namespace, names: Sequence[str]) -> list[dict[str, Any]]:
    """Measures the engines in this process, one round of each at a time."""
    import torch

    torch.set_num_threads(work.threads or os.cpu_count() or 1)
    return measure(work, [ENGINES[name](work) for name in names])


def table(report: dict[str, Any]) -> str:
    names = ("engine", "tokens/s", "seconds", "ratio", "of floor", "peak GiB", "start s")
    lines = ["".join(f"{name:>11}" for name in names) + "  phases"]
    for name, row in report["results"].items():
        phases = ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in row.get("phases", {}).items())
        cells = (
            name,
            f"{row['tokens_per_second']:,}",
            f"{row['seconds']:.3f}",
            f"{row['ratio']:.2f}",
            f"{row['share_of_floor']:.1%}",
            f"{row['peak_gb']:.1f}",
            f"{row['start_seconds']:.2f}",
        )
        lines.append("".join(f"{cell:>11}" for cell in cells) + f"  {phases}")
    lines += [f"{peer}: left out, because it is not installed" for peer in report["absent"]]
    return "\n".join([*lines, report["machine"]])


def machine() -> str:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return f"{gpu}, torch {torch.__version__}"


@dataclass
class Engine:
    """A loaded engine."""

    config: Any
    """Config of its model."""
    sample: Callable[[], int]
    """Samples all completions; returns the number of tokens."""
    start_seconds: float
    phases: Callable[[], dict[str, float]] = dict
    """Samples all completions again; returns seconds by phase, if the engine can measure them."""


def measure(work: argparse.Namespace, engines: Sequence[Engine]) -> list[dict[str, Any]]:
    """Result of each engine's fastest round after the first."""
    times: list[list[float]] = [[] for _ in engines]
    tokens, loads = [0] * len(engines), []
    for number in range(work.rounds):
        for i, engine in enumerate(engines):
            begin = synchronized_time(work)
            tokens[i] = engine.sample()
            times[i].append(synchronized_time(work) - begin)
            speed = f"{tokens[i] / times[i][-1]:,.0f} tokens/s, load {os.getloadavg()[0]:.1f}"
            print(f"round {number + 1} of {work.rounds}, engine {i + 1} of {len(engines)}: {speed}", file=sys.stderr)
        loads.append(os.getloadavg()[0])
    return [
        describe(work, engine, count, min(seconds[1:] or seconds), statistics.fmean(loads))
        for engine, count, seconds in zip(engines, tokens, times, strict=True)
    ]


def synchronized_time(work: argparse.Namespace) -> float:
    """The time when the GPU has finished its work."""
    import torch

    if work.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def describe(work: argparse.Namespace, engine: Engine, tokens: int, seconds: float, load: float) -> dict[str, Any]:
    """Result of an engine. `share_of_floor`: speed divided by the limit that memory bandwidth sets."""
    import torch

    config = engine.config
    bytes_each = 2 if work.device == "cuda" else 4
    key_width = config.num_key_value_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    rows = work.prompts * work.group
    cache = 2 * config.num_hidden_layers * key_width * bytes_each * rows * (work.prompt_tokens + work.new / 2)
    per_layer = config.hidden_size * (2 * config.hidden_size + 2 * key_width + 3 * config.intermediate_size)
    weights = bytes_each * (config.num_hidden_layers * per_layer + config.vocab_size * config.hidden_size)
    floor = rows / ((cache + weights) / MEMORY_BANDWIDTH)
    peak = torch.cuda.max_memory_allocated() / 2**30 if work.device == "cuda" else 0.0
    return {
        "tokens": tokens,
        "seconds": round(seconds, 4),
        "tokens_per_second": round(tokens / seconds),
        "share_of_floor": round(tokens / seconds / floor, 4) if work.device == "cuda" and not work.uneven else 0.0,
        "peak_gb": round(peak, 2),
        "start_seconds": round(engine.start_seconds, 2),
        "load": round(load, 1),
        "phases": engine.phases(),
    }


def random_prompts(work: argparse.Namespace, vocabulary: int) -> list[list[int]]:
    """Tokens of each prompt, the same for every engine."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return torch.randint(10, min(40000, vocabulary), (work.prompts, work.prompt_tokens), generator=generator).tolist()


def make_policy(work: argparse.Namespace, attention: str, dtype: str) -> Any:
    import torch
    from shapes import COMPUTE_DTYPES, NoTokenizer, random_policy

    from grpo.model.load import load_policy

    if not work.model:
        return random_policy(work.shape, work.device, dtype, attention)
    stored = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    policy = load_policy(work.model, device=work.device, dtype=stored, compute=COMPUTE_DTYPES.get(dtype))
    policy.tokenizer, policy.end_tokens = NoTokenizer(), frozenset([-1])  # every completion runs to the limit
    policy.model.set_attn_implementation(attention)
    return policy


def grpo_engine(work: argparse.Namespace) -> Engine:
    from grpo.model.attention import NAME
    from grpo.rollout.builtin import Engine as BuiltinEngine
    from grpo.rollout.protocol import Sampling
    from grpo.types import Problem

    policy = make_policy(work, NAME, work.dtype or ("mixed" if work.device == "cuda" else "float32"))
    if work.device == "cuda":
        import grpo.rollout.cuda.graphs  # noqa: F401 - start times leave out imports, for vLLM too
    if work.uneven:
        stop_at_random(work)
    problems = [
        Problem(str(i), " ".join(map(str, row)), "")
        for i, row in enumerate(random_prompts(work, policy.model.config.vocab_size))
    ]
    engine = BuiltinEngine(policy)

    def sample(new: int = work.new) -> int:
        groups = engine.sample(problems, work.group, Sampling(seed=0, temperature=1.0, max_new_tokens=new))
        return sum(len(completion) for group in groups for completion in group.completions)

    def phases() -> dict[str, float]:
        """A separate round, because waiting for the end of each phase takes time."""
        if (graphs := engine.graphs) is None:
            return {}
        spent: dict[str, float] = {}
        graphs.prefill, graphs.run = timed(spent, "prefill", graphs.prefill), timed(spent, "decode", graphs.run)
        timed(spent, "host", sample)()
        return {**spent, "host": spent["host"] - spent["prefill"] - spent["decode"]}

    begin = synchronized_time(work)
    sample(2)
    start_seconds = synchronized_time(work) - begin
    return Engine(policy.model.config, sample, start_seconds, phases)


def timed(spent: dict[str, float], phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which also adds its seconds to `spent`."""
    import torch

    def run(*arguments: Any) -> Any:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = function(*arguments)
        torch.cuda.synchronize()
        spent[phase] = spent.get(phase, 0.0) + time.perf_counter() - begin  # summed over sampling batches
        return result

    return run


def stop_at_random(work: argparse.Namespace) -> None:
    """Patches the decoding so that every completion ends at a random length."""
    import numpy as np
    import torch

    from grpo.rollout.cuda import graphs

    rng, rows = np.random.default_rng(0), work.prompts * work.group
    if work.uneven == "uniform":
        stops = rng.integers(1, 2 * work.new // 3, rows)
    else:
        chance = 1.0 / work.new
        while (1 - (1 - chance) ** work.new) / chance > work.new / 3:
            chance *= 1.01
        stops = rng.geometric(chance, rows).clip(1, work.new)

    class Uneven(graphs.GraphDecoding):
        last_S: torch.Tensor | None = None

        def _sample(self, logits_UV: torch.Tensor, source_B: torch.Tensor) -> None:
            super()._sample(logits_UV, source_B)
            if self.last_S is None:
                spare = [-1]  # slot of finished rows
                self.last_S = torch.tensor([*(stops - 1), *spare], dtype=torch.int32, device=self.policy.device)
            batch, size = self.batch, len(source_B)
            batch.active_B[:size].mul_(self.last_S.index_select(0, batch.slot_B[:size]) > batch.time)

        def run(self, *arguments: Any) -> tuple[Any, Any, Any]:
            tokens_SL, logp_SL, length_S = super().run(*arguments)
            return tokens_SL, logp_SL, np.minimum(stops, length_S)

    graphs.GraphDecoding = Uneven


def hf_engine(work: argparse.Namespace) -> Engine:
    import torch

    policy = make_policy(work, "sdpa", "bfloat16" if work.device == "cuda" else "float32")
    model = policy.model
    ids = torch.tensor(random_prompts(work, model.config.vocab_size), device=work.device).repeat_interleave(
        work.group, 0
    )
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 2, "eos_token_id": None}

    def generate(new: int) -> int:
        with torch.no_grad():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, **options
            )
        return out.shape[0] * (out.shape[1] - ids.shape[1])

    begin = time.perf_counter()
    generate(2)
    start_seconds = time.perf_counter() - begin
    return Engine(model.config, lambda: generate(work.new), start_seconds)


def vllm_engine(work: argparse.Namespace) -> Engine:
    """As TRL calls it: in process, with log-probabilities of the sampled tokens and prefix cache."""
    os.environ.update(
        VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING", HF_HUB_OFFLINE="1"
    )
    from shapes import SHAPES
    from vllm import LLM, SamplingParams

    config = SHAPES[work.shape]
    folder = tempfile.TemporaryDirectory()  # `sample` keeps it alive
    config.dtype, config.architectures = "bfloat16", [type(config).__name__.replace("Config", "ForCausalLM")]
    config.save_pretrained(folder.name)
    begin = time.perf_counter()
    engine = LLM(
        model=folder.name,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=work.prompt_tokens + work.new + 8,
        gpu_memory_utilization=0.6,
        max_num_seqs=min(work.prompts * work.group, 1024),
        enable_prefix_caching=True,
    )
    start_seconds = time.perf_counter() - begin
    options = SamplingParams(
        n=work.group, temperature=1.0, max_tokens=work.new, ignore_eos=True, logprobs=0, detokenize=False
    )
    requests = [{"prompt_token_ids": row} for row in random_prompts(work, config.vocab_size)]

    def sample(_folder: Any = folder) -> int:
        outputs = engine.generate(requests, options, use_tqdm=False)
        return sum(len(one.token_ids) for request in outputs for one in request.outputs)

    return Engine(config, sample, start_seconds)


ENGINES = {"grpo": grpo_engine, "hf": hf_engine, "vllm": vllm_engine}

if __name__ == "__main__":
    main()
