"""The engines that rollout.py measures: grpo, HF `generate` and vLLM, each with the same prompts and lengths."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from lengths import draw_lengths

SHARE_OF_FREE_MEMORY = 0.6
"""Share of free memory for the keys and values of HF `generate`; logits and activations need the rest."""


def no_phases() -> dict[str, float]:
    return {}


def no_drops() -> int:
    return 0


def allocated_bytes() -> int:
    """Peak memory of torch in this process."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A loaded engine."""

    config: Any
    """Config of its model."""
    sample: Callable[[], int]
    """Samples all completions; returns the number of tokens."""
    start_seconds: float
    peak_bytes: Callable[[], int] = allocated_bytes
    phases: Callable[[], dict[str, float]] = no_phases
    """Samples all completions again; returns seconds by phase, if the engine can measure them."""
    dropped: Callable[[], int] = no_drops
    """Rows that lost their place in the last round and started again."""


def lengths_of(work: argparse.Namespace) -> np.ndarray:
    """The length of each completion, group after group."""
    return draw_lengths(work.uneven, work.prompts * work.group, work.new)


def random_prompts(work: argparse.Namespace, vocabulary: int) -> list[list[int]]:
    """Tokens of each prompt, the same for every engine."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return torch.randint(10, min(40000, vocabulary), (work.prompts, work.prompt_tokens), generator=generator).tolist()


def synchronized_time() -> float:
    """The time when the GPU has finished this process's work."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


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
        set_limits(lengths_of(work))
    problems = [
        Problem(str(i), " ".join(map(str, row)), "")
        for i, row in enumerate(random_prompts(work, policy.model.config.vocab_size))
    ]
    engine, drops = BuiltinEngine(policy), count_drops()

    def sample(new: int = work.new) -> int:
        drops.clear()
        groups = engine.sample(problems, work.group, Sampling(seed=0, temperature=1.0, max_new_tokens=new))
        return sum(len(completion) for group in groups for completion in group.completions)

    def phases() -> dict[str, float]:
        """A separate round, because waiting for the end of each phase takes time."""
        if (graphs := engine.graphs) is None:
            return {}
        spent: dict[str, float] = {}
        graphs.change, graphs.decode = timed(spent, "prefill", graphs.change), timed(spent, "decode", graphs.decode)
        timed(spent, "host", sample)()
        return {**spent, "host": spent["host"] - spent["prefill"] - spent["decode"]}

    begin = synchronized_time()
    sample(2)
    return Engine(
        config=policy.model.config,
        sample=sample,
        start_seconds=synchronized_time() - begin,
        phases=phases,
        dropped=lambda: sum(drops),
    )


def timed(spent: dict[str, float], phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which also adds its seconds to `spent`."""

    def run(*arguments: Any) -> Any:
        begin = synchronized_time()
        result = function(*arguments)
        spent[phase] = spent.get(phase, 0.0) + synchronized_time() - begin  # summed over calls
        return result

    return run


def set_limits(lengths_N: np.ndarray) -> None:
    """Patches the decoding so that completion n of every call ends after `lengths_N[n]` tokens."""
    import torch

    from grpo.rollout.cuda.sampler import TokenSampler

    start = TokenSampler.start

    def start_with_limits(self: TokenSampler, noise_NL: torch.Tensor, temperature: float) -> None:
        start(self, noise_NL, temperature)
        N, L = noise_NL.shape
        limit_N = self.results.limit_N
        limit_N[:N] = torch.from_numpy(lengths_N.clip(max=L)).to(limit_N)

    TokenSampler.start = start_with_limits  # type: ignore[method-assign]


def count_drops() -> list[int]:
    """A list to which every look of a schedule, from now on, adds the number of rows that it drops."""
    from grpo.rollout.schedule import Look, Schedule

    drops: list[int] = []
    look = Schedule.look

    def counted(self: Schedule, *arguments: Any) -> Look:
        found = look(self, *arguments)
        drops.append(len(found.dropped))
        return found

    Schedule.look = counted  # type: ignore[method-assign]
    return drops


def hf_engine(work: argparse.Namespace) -> Engine:
    """`generate` at its best: stock SDPA attention, bfloat16 on a GPU, as many rows at once as memory holds.

    Its rows leave together. A stopping criterion with a limit per row ends a batch at the longest of its completions,
    and tokens count up to each row's limit.
    """
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    from grpo.model.device import free_memory
    from grpo.model.plan.shape import shape_of

    class OwnLimits(StoppingCriteria):
        def __init__(self, end_B: torch.Tensor):
            self.end_B = end_B

        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return input_ids.shape[1] >= self.end_B

    policy = make_policy(work, "sdpa", "bfloat16" if work.device == "cuda" else "float32")
    model = policy.model
    model.generation_config.eos_token_id = None
    ids = torch.tensor(random_prompts(work, model.config.vocab_size), device=work.device)
    ids = ids.repeat_interleave(work.group, 0)
    lengths_N = torch.from_numpy(lengths_of(work)).to(work.device)
    shape = shape_of(model.config.to_dict(), work.model or work.shape)
    row_bytes = 2 * shape.layers * shape.kv_width * model.dtype.itemsize * (work.prompt_tokens + work.new)
    at_once = max(1, int(SHARE_OF_FREE_MEMORY * free_memory(policy.device) / row_bytes))
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 2}

    def generate(limits_N: torch.Tensor) -> int:
        for batch_ids, limits in zip(ids.split(at_once), limits_N.split(at_once), strict=True):
            with torch.no_grad():
                out = model.generate(
                    batch_ids,
                    attention_mask=torch.ones_like(batch_ids),
                    max_new_tokens=int(limits.max()),
                    stopping_criteria=StoppingCriteriaList([OwnLimits(work.prompt_tokens + limits)]),
                    **options,
                )
            assert out.shape[1] - work.prompt_tokens == limits.max()
        return int(limits_N.sum())

    begin = synchronized_time()
    generate(lengths_N.clamp(max=2))
    start_seconds = synchronized_time() - begin
    return Engine(config=model.config, sample=lambda: generate(lengths_N), start_seconds=start_seconds)


def vllm_engine(work: argparse.Namespace) -> Engine:
    """vLLM with prefix cache, log-probabilities of the sampled tokens, and one request per completion, as TRL sends.

    --vllm best: CUDA graphs up to the number of rows, asynchronous scheduling, 0.85 of the memory, its engine in its
    own process. --vllm trl: in this process with 0.6 of the memory, and its defaults.
    """
    best = work.vllm == "best"
    os.environ.update(
        VLLM_NO_USAGE_STATS="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="1" if best else "0",
        VLLM_WORKER_MULTIPROC_METHOD="spawn",  # this process may have used CUDA already
        VLLM_LOGGING_LEVEL="WARNING",
        HF_HUB_OFFLINE="1",
    )
    import torch
    from shapes import SHAPES
    from vllm import LLM, SamplingParams

    config, rows = SHAPES[work.shape], min(work.prompts * work.group, 1024)
    folder = tempfile.TemporaryDirectory()  # `sample` keeps it alive
    config.dtype, config.architectures = "bfloat16", [type(config).__name__.replace("Config", "ForCausalLM")]
    config.save_pretrained(folder.name)
    settings: dict[str, Any] = {"gpu_memory_utilization": 0.6}
    if best:
        settings = {
            "gpu_memory_utilization": 0.85,
            "async_scheduling": True,
            "compilation_config": {"max_cudagraph_capture_size": rows},
        }
    begin = time.perf_counter()
    engine = LLM(
        model=folder.name,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=work.prompt_tokens + work.new + 8,
        max_num_seqs=rows,
        enable_prefix_caching=True,
        **settings,
    )
    start_seconds = time.perf_counter() - begin
    prompts = random_prompts(work, config.vocab_size)
    requests = [{"prompt_token_ids": row} for row in prompts for _ in range(work.group)]
    options = [
        SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, logprobs=0, detokenize=False)
        for length in lengths_of(work).tolist()
    ]

    def sample(_folder: Any = folder) -> int:
        outputs = engine.generate(requests, options, use_tqdm=False)
        return sum(len(one.token_ids) for request in outputs for one in request.outputs)

    def device_bytes() -> int:
        free, total = torch.cuda.mem_get_info()
        return total - free

    return Engine(
        config=config,
        sample=sample,
        start_seconds=start_seconds,
        peak_bytes=device_bytes if best else allocated_bytes,
    )


ENGINES = {"grpo": grpo_engine, "hf": hf_engine, "vllm": vllm_engine}
PACKAGES = {"grpo": "grpo", "hf": "transformers", "vllm": "vllm"}


def start_engine(name: str, work: argparse.Namespace) -> Engine:
    print(f"{name}: starting", file=sys.stderr, flush=True)
    return ENGINES[name](work)
