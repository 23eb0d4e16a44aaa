"""Sources of bfloat16's rounding noise: SmolLM2's log-probabilities with one kind of number rounded at a time.

python benchmarks/rounding.py [--model smollm2] [--new 48] [--json]

The baseline is a plain float32 forward pass over sampled completions, with weights rounded to bfloat16. In each further
pass one kind of number is also rounded to bfloat16, and the mean |Δ log-probability| of the sampled tokens is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Set
from typing import Any

import torch

from grpo.errors import GrpoError
from grpo.model.load import load_policy
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.types import Group, Problem, chat

KINDS = (
    "norm", "queries and keys", "rotated", "values", "attention weights", "attention output", "out",
    "gate and up", "silu", "silu × up", "down", "last norm",
)  # fmt: skip
NOT_IN_FUSED_BLOCKS = {"queries and keys", "out", "down", "silu"}
"""Kinds that `grpo.model.fused` does not round."""
QUESTIONS = ("What is 23 + 58?", "Tell me a story about a fox.", "Write a poem on rain.", "Explain gravity.")


def logprobs(model: Any, groups: list[Group], rounded: Set[str]) -> torch.Tensor:
    """Log-probabilities of the sampled tokens, in float32 with the `rounded` kinds in bfloat16."""
    weights = {name: weight.detach().bfloat16().float() for name, weight in model.named_parameters()}
    config, found = model.config, []
    heads, shared = config.num_attention_heads, config.num_attention_heads // config.num_key_value_heads

    def bf16(x: torch.Tensor, kind: str) -> torch.Tensor:
        """Rounds x if its kind is among those to round."""
        return x.bfloat16().float() if kind in rounded else x

    def norm(x: torch.Tensor, name: str, kind: str) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps)
        return bf16(x * scale * dict(model.named_parameters())[name].detach(), kind)

    def rotate(x_THD: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor) -> torch.Tensor:
        low, high = x_THD.chunk(2, dim=-1)
        return bf16(x_THD * cos_TD[:, None] + torch.cat([-high, low], dim=-1) * sin_TD[:, None], "rotated")

    for group in groups:
        for done in group.completions:
            tokens = torch.tensor([*group.prompt_tokens.tolist(), *done.tokens.tolist()])
            T, first = len(tokens), len(group.prompt_tokens)
            x = model.get_input_embeddings().weight.detach()[tokens]
            cos, sin = (table[0] for table in model.base_model.rotary_emb(x[None], torch.arange(T)[None]))
            later = torch.ones(T, T).triu(1).bool()
            for index in range(config.num_hidden_layers):
                layer = f"model.layers.{index}."
                normal = norm(x, layer + "input_layernorm.weight", "norm")
                q, k, v = (
                    bf16(normal @ weights[f"{layer}self_attn.{name}_proj.weight"].T, kind).view(T, -1, cos.shape[1])
                    for name, kind in (("q", "queries and keys"), ("k", "queries and keys"), ("v", "values"))
                )
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
                k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
                score = torch.einsum("thd,shd->hts", q, k) / math.sqrt(cos.shape[1])
                score = score.masked_fill(later, -torch.inf)
                share = (score - score.amax(-1, keepdim=True)).exp()
                mixed = torch.einsum("hts,shd->thd", bf16(share, "attention weights"), v)
                mixed = bf16((mixed / share.sum(-1).T[..., None]).reshape(T, heads * cos.shape[1]), "attention output")
                x = x + bf16(mixed @ weights[layer + "self_attn.o_proj.weight"].T, "out")
                normal = norm(x, layer + "post_attention_layernorm.weight", "norm")
                gate, up = (
                    bf16(normal @ weights[f"{layer}mlp.{name}_proj.weight"].T, "gate and up") for name in ("gate", "up")
                )
                gated = bf16(bf16(torch.nn.functional.silu(gate), "silu") * up, "silu × up")
                x = x + bf16(gated @ weights[layer + "mlp.down_proj.weight"].T, "down")
            hidden = norm(x, "model.norm.weight", "last norm")[first - 1 : -1]
            logits = hidden @ model.get_output_embeddings().weight.detach().bfloat16().float().T
            found.append(torch.log_softmax(logits, -1).gather(1, tokens[first:, None])[:, 0])
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a model of the Llama family without biases")
    parser.add_argument("--new", type=int, default=48, help="most new tokens of a completion")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    try:
        measure(arguments)
    except GrpoError as error:  # border: model names from the command line
        sys.exit(f"rounding.py: {error}")


@torch.no_grad()
def measure(arguments: argparse.Namespace) -> None:
    policy = load_policy(arguments.model)
    if policy.model.config.model_type != "llama":
        sys.exit(
            f"rounding.py: --model {arguments.model}: is of type {policy.model.config.model_type}; use a Llama model"
        )
    problems = [Problem(str(i), text, "", chat(text)) for i, text in enumerate(QUESTIONS)]
    groups = Engine(policy).sample(problems, 2, Sampling(seed=0, temperature=1.0, max_new_tokens=arguments.new))
    exact = logprobs(policy.model, groups, set())
    single = {kind: {kind} for kind in KINDS}
    cases = {**single, "all": set(KINDS), "all that the fused blocks round": set(KINDS) - NOT_IN_FUSED_BLOCKS}
    changes = {}
    for name, rounded in cases.items():
        changes[name] = round(float((logprobs(policy.model, groups, rounded) - exact).abs().mean()), 5)
        print(f"{name:32} {changes[name]:.5f}", file=sys.stderr if arguments.json else sys.stdout, flush=True)
    report = {"model": arguments.model, "tokens": len(exact), "changes": changes}
    print(json.dumps(report) if arguments.json else f"{len(exact)} tokens of {arguments.model}")


if __name__ == "__main__":
    main()
