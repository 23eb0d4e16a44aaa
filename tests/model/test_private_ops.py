"""Private operators of torch: each one that the code calls exists, with the arguments the code passes.

pyproject.toml bounds torch's version for their sake. A new version is allowed in once these tests pass with it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
CALLED = re.compile(r"\btorch\.(?:ops\.\w+\.\w+(?:\.\w+)?|_\w+)")

# By name: the positional arguments, in order, then the keyword arguments that are passed.
ARGUMENTS = {
    "torch.ops.aten._flash_attention_forward": (
        "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask",
        "scale",
    ),
    "torch.ops.aten._flash_attention_backward": (
        "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal rng_state unused",
        "scale",
    ),
    "torch.ops.aten.addmm.dtype_out": ("self mat1 mat2 out_dtype", "out"),
    "torch.ops.mkldnn._reorder_linear_weight": ("self batch_size", ""),
    "torch.ops.mkldnn._linear_pointwise": ("X W B attr scalars algorithm", ""),
    "torch.ops.mkldnn._linear_pointwise.binary": ("X other W B attr", ""),
    "torch._foreach_div_": ("self scalar", ""),
    "torch._foreach_copy_": ("self src non_blocking", ""),
}
OVERLOADS = {
    "torch._foreach_div_": "torch.ops.aten._foreach_div_.Scalar",
    "torch._foreach_copy_": "torch.ops.aten._foreach_copy_",
}


def called() -> set[str]:
    return {name for file in (ROOT / "src/grpo").rglob("*.py") for name in CALLED.findall(file.read_text())}


def test_every_private_operator_in_the_code_is_checked_here() -> None:
    assert called() == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_private_operator_exists_with_these_arguments(name: str) -> None:
    path = OVERLOADS.get(name, name).removeprefix("torch.").split(".")
    operator = torch
    for part in path:
        assert hasattr(operator, part), f"{name} is not in torch {torch.__version__}: bound torch in pyproject.toml"
        operator = getattr(operator, part)
    if isinstance(operator, torch._ops.OpOverloadPacket):
        operator = operator.default
    given = operator._schema.arguments
    positional, keywords = (names.split() for names in ARGUMENTS[name])
    found = [argument.name for argument in given if not argument.kwarg_only]
    assert found == positional, f"{name} of torch {torch.__version__} takes {found}"
    assert set(keywords) <= {argument.name for argument in given}


def test_torch_is_bounded() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [bound] = [entry for entry in dependencies if entry.startswith("torch>")]
    assert re.fullmatch(r"torch>=\d+\.\d+,<\d+\.\d+", bound)
