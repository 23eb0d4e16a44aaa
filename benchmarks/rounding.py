"""Where bfloat16's noise comes from: SmolLM2's log-probabilities with one kind of number rounded at a time.

python benchmarks/rounding.py [--model smollm2] [--new 48] [--json]

A plain float32 forward pass over sampled answers, its weights rounded once to bfloat16. Then the same with the numbers
named rounded to bfloat16 wherever they occur: mean |change of the log-probability| of the sampled tokens.
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
    "norm", "qkv", "rotated", "weights of attention", "mixed", "out",
    "gate and up", "silu", "product", "down", "last norm",
)  # fmt: skip
NOT_IN_FUSED_BLOCKS = {"out", "down", "silu"}
"""What `grpo.model.fused` does not round."""
QUESTIONS = ("What is 23 + 58?", "Tell me a story about a fox.", "Write a poem on rain.", "Explain gravity.")


def logprobs(model: Any, groups: list[Group], rounded: Set[str]) -> torch.Tensor:
    weights = {name: weight.detach().bfloat16().float() for name, weight in model.named_parameters()}
    config, found = model.config, []
    heads, shared = config.num_attention_heads, config.num_attention_heads // config.num_key_value_heads

    def kept(x: torch.Tensor, kind: str) -> torch.Tensor:
        return x.bfloat16().float() if kind in rounded else x

    def norm(x: torch.Tensor, name: str, kind: str) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps)
        return kept(x * scale * dict(model.named_parameters())[name].detach(), kind)

    def turned(x_THD: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor) -> torch.Tensor:
        low, high = x_THD.chunk(2, dim=-1)
        return kept(x_THD * cos_TD[:, None] + torch.cat([-high, low], dim=-1) * sin_TD[:, None], "rotated")

    for group in groups:
        for done in group.completions:
            tokens = torch.tensor([*group.prompt_tokens.tolist(), *done.tokens.tolist()])
            T, first = len(tokens), len(group.prompt_tokens)
            x = model.get_input_embeddings().weight.detach()[tokens]
            cos, sin = (table[0] for table in model.base_model.rotary_emb(x[None], torch.arange(T)[None]))
            later = torch.ones(T, T).triu(1).bool()
            for index in range(config.num_hidden_layers):
                of = f"model.layers.{index}."
                normal = norm(x, of + "input_layernorm.weight", "norm")
                q, k, v = (
                    kept(normal @ weights[f"{of}self_attn.{name}_proj.weight"].T, "qkv").view(T, -1, cos.shape[1])
                    for name in "qkv"
                )
                q, k = turned(q, cos, sin), turned(k, cos, sin)
                k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
                score = torch.einsum("thd,shd->hts", q, k) / math.sqrt(cos.shape[1])
                score = score.masked_fill(later, -torch.inf)
                share = (score - score.amax(-1, keepdim=True)).exp()
                mixed = torch.einsum("hts,shd->thd", kept(share, "weights of attention"), v)
                mixed = kept((mixed / share.sum(-1).T[..., None]).reshape(T, heads * cos.shape[1]), "mixed")
                x = x + kept(mixed @ weights[of + "self_attn.o_proj.weight"].T, "out")
                normal = norm(x, of + "post_attention_layernorm.weight", "norm")
                gate, up = (
                    kept(normal @ weights[f"{of}mlp.{name}_proj.weight"].T, "gate and up") for name in ("gate", "up")
                )
                product = kept(kept(torch.nn.functional.silu(gate), "silu") * up, "product")
                x = x + kept(product @ weights[of + "mlp.down_proj.weight"].T, "down")
            hidden = norm(x, "model.norm.weight", "last norm")[first - 1 : -1]
            logits = hidden @ model.get_output_embeddings().weight.detach().bfloat16().float().T
            found.append(torch.log_softmax(logits, -1).gather(1, tokens[first:, None])[:, 0])
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="of Llama's kind, without biases")
    parser.add_argument("--new", type=int, default=48, help="tokens of an answer, at most")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        measure(arguments)
    except GrpoError as error:  # the border to what people name
        sys.exit(f"rounding.py: {error}")


@torch.no_grad()
def measure(arguments: argparse.Namespace) -> None:
    policy = load_policy(arguments.model)
    if policy.model.config.model_type != "llama":
        sys.exit(
            f"rounding.py: --model {arguments.model} is a {policy.model.config.model_type}; it knows Llama's blocks"
        )
    problems = [Problem(str(i), text, "", chat(text)) for i, text in enumerate(QUESTIONS)]
    groups = Engine(policy).sample(problems, 2, Sampling(seed=0, temperature=1.0, max_new_tokens=arguments.new))
    exact = logprobs(policy.model, groups, set())
    alone = {kind: {kind} for kind in KINDS}
    cases = {**alone, "all": set(KINDS), "all that fused blocks round": set(KINDS) - NOT_IN_FUSED_BLOCKS}
    changes = {}
    for name, rounded in cases.items():
        changes[name] = round(float((logprobs(policy.model, groups, rounded) - exact).abs().mean()), 5)
        print(f"{name:28} {changes[name]:.5f}", file=sys.stderr if arguments.json else sys.stdout, flush=True)
    told = {"model": arguments.model, "tokens": len(exact), "changes": changes}
    print(json.dumps(told) if arguments.json else f"{len(exact)} tokens of {arguments.model}")


if __name__ == "__main__":
    main()
