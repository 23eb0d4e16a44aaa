"""docs/rollout.md: its picture, its figures, and the tests that it names."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from grpo.model.plan import SHAPES
from grpo.model.plan.cache import block_bytes
from grpo.rollout.cuda.graphs import QUEUED_SHARE
from grpo.rollout.cuda.kernels.join import splits
from grpo.rollout.occupancy import drawn_lengths, occupancy_of
from grpo.rollout.schedule import BLOCK_TOKENS, TOKENS_BETWEEN_LOOKS
from helpers.docs import DOCS

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "scripts"))
from pictures import rollout as script  # noqa: E402

PAGE = (DOCS / "rollout.md").read_text()
LENGTHS = drawn_lengths(script.PROMPTS * script.GROUP_SIZE, script.MEAN_TOKENS, script.NEW_TOKENS)
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def test_the_picture_has_the_planners_numbers() -> None:
    trace = script.scheduled(LENGTHS)
    prompts = [script.PROMPT_TOKENS] * script.PROMPTS
    planned = occupancy_of(prompts, script.GROUP_SIZE, script.NEW_TOKENS, script.ROOM, LENGTHS)
    assert (trace.steps, sum(bar.dropped for bar in trace.bars)) == (planned.steps, planned.dropped)
    assert planned.dropped, "the page explains dropped rows"


@pytest.mark.parametrize("trace", [script.scheduled(LENGTHS), script.waves(LENGTHS)], ids=["scheduled", "waves"])
def test_every_completion_is_drawn_whole(trace: script.Trace) -> None:
    whole = {bar.completion: bar.end - bar.start + 1 for bar in trace.bars if not bar.dropped}
    assert whole == dict(enumerate(LENGTHS.tolist()))
    assert trace.steps == max(bar.end for bar in trace.bars)
    assert max(blocks for _, blocks in trace.held) <= script.ROOM.blocks
    for time, blocks in trace.held:
        assert script.filled(trace, time) <= blocks or time == trace.steps


def test_waves_by_hand() -> None:
    """Four rows of 16 blocks and the 2 of their prompt fit 72 blocks: a wave is a group."""
    assert script.most_whole_rows() == 4
    assert script.waves(LENGTHS).steps == sum(int(LENGTHS[n : n + 4].max()) - 1 for n in range(0, 32, 4))


def test_figures_of_the_page() -> None:
    assert f"keys and values of {BLOCK_TOKENS} tokens" in PAGE
    assert f"between tokens, every {TOKENS_BETWEEN_LOOKS}," in PAGE
    assert f"as they were {QUEUED_SHARE * TOKENS_BETWEEN_LOOKS:.0f} tokens earlier" in PAGE
    assert f"{block_bytes(SHAPES['qwen2.5-1.5b'], 2) / 2**20:.2f} MiB with the Qwen2.5-1.5B shape in bfloat16" in PAGE
    shares = [splits(rows, key_heads=2, blocks=68) for rows in (8, 16, 32, 64, 128, 256)]
    assert f"| programs per row and key head | {' | '.join(map(str, shares))} |" in PAGE


@pytest.mark.parametrize(("file", "name"), NAMED, ids="::".join)
def test_a_named_test_exists(file: str, name: str) -> None:
    functions = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert name in functions
