"""What a run's engine prepares for: all steps and evaluations, with one KV cache and one set of graphs.

Their capacity decides how rows are rounded on a GPU, so it must not grow from call to call: a resumed run begins with
another call.
"""

from __future__ import annotations

from rich.filesize import decimal as readable

from grpo.model.device import free_memory
from grpo.model.plan.cache import whole_blocks
from grpo.model.plan.work import Work
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.rollout.schedule import BLOCK_TOKENS


def expect(engine: Engine, work: Work) -> list[str]:
    """Measures memory, before the engine's first call. Returns a note where it does not hold a KV cache of a given
    size any more, which is then measured again."""
    engine.expected, given, free = work, engine.cache_blocks, free_memory(engine.policy.device)
    blocks = min(given, whole_blocks(work))
    taken = engine.logits_bytes() * work.rows + engine.bytes_per_token() * BLOCK_TOKENS * blocks
    if given and taken > free:
        engine.cache_blocks = 0
    engine.measure(work.rows, work.prompt_tokens, Sampling(seed=0, temperature=1.0, max_new_tokens=work.new_tokens))
    if not given or engine.cache_blocks == given:
        return []
    return [
        f"the run began with a KV cache of {given} blocks, with which sampling takes {readable(taken)}, and "
        f"{readable(free)} are free on {engine.policy.device}: it has {engine.cache_blocks} blocks from now on, so "
        "other completions are decoded together, and last bits may differ"
    ]
