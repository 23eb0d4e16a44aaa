"""What a run's engine prepares for: all steps and evaluations, with one KV cache and one set of graphs.

Their capacity decides how rows are rounded on a GPU, so it must not grow from call to call: a resumed run begins with
another call.
"""

from __future__ import annotations

from grpo.model.plan.work import Work
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling


def expect(engine: Engine, work: Work) -> None:
    """Measures memory, before the engine's first call."""
    engine.expected = work
    engine.measure(work.rows, work.prompt_tokens, Sampling(seed=0, temperature=1.0, max_new_tokens=work.new_tokens))
