"""What `grpo plan` prints: tables of memory, operations, collectives and scaling."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from grpo.model.plan.gpus import GIB, MEASURED_GPU
from grpo.model.plan.shard import SHARDS

BAR = 10
"""Characters of an efficiency of 100%."""


def show(planned: Mapping[str, Any]) -> None:
    work, rows = planned["work"], _merged(planned["algorithms"])
    adapters = f", LoRA of rank {planned['lora']}" if planned["lora"] else ""
    read = f" ({work['observed_tokens']} of them read)" if work["observed_tokens"] else ""
    lines = [
        f"{planned['model']}: {planned['parameters'] / 1e9:.3g} billion parameters in {planned['dtype']}{adapters}",
        f"{work['prompts']} prompts × {work['group_size']} completions, {work['prompt_tokens']} + {work['new_tokens']} "
        f"tokens{read}, micro-batches of at most {work['token_budget']} tokens",
        *(f"Warning: {warning}" for warning in planned["warnings"]),
    ]
    console = Console()
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    title = "GiB at most, on each GPU" if planned["cluster"] else "GiB at most"
    console.print(_table(title, rows, "memory", GIB, total=("peak", [row["peak"] for row in rows])))
    console.print(_table("10¹² operations a step", rows, "flops", 1e12, total=("all", _sums(rows))))
    if planned["algorithms"][0]["rollout"]:
        console.print(_rollouts(planned), highlight=False, soft_wrap=True)
    if planned["gpu"]:
        console.print(_verdict(planned), highlight=False, soft_wrap=True)
    if planned["cluster"]:
        _show_scale(console, planned, rows)


def _show_scale(console: Console, planned: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Memory by mode for every algorithm; collectives and curves of the first."""
    cluster, first = planned["cluster"], rows[0]
    scale, name = first["scale"], first["algorithm"].replace("\n", ", ")
    joined = f", {cluster['nodes']} nodes of {cluster['gpus']}" if cluster["nodes"] > 1 else ""
    console.print(f"\n{cluster['ranks']} GPUs{joined}. Everything below is predicted.", highlight=False, soft_wrap=True)
    modes = Table(box=SIMPLE_HEAD, pad_edge=False)
    modes.add_column("GiB at most, by mode (--shard)")
    for row in rows:
        modes.add_column(row["algorithm"], justify="right")
    for mode, words in SHARDS.items():
        peaks = [
            f"{_number(row['scale']['modes'][mode]['peak'] / GIB)}{' ←' if row['scale']['shard'] == mode else '  '}"
            for row in rows
        ]
        modes.add_row(f"{words} ({mode})", *peaks)
    console.print(modes)
    console.print(_collectives(scale["step"]["collectives"], name))
    work = planned["work"]["prompts"]
    console.print(_curve(f"Strong scaling, {name}: {work} prompts on all GPUs together", scale["strong"]))
    console.print(_curve(f"Weak scaling, {name}: {work} prompts for each GPU", scale["weak"]))
    console.print("\n".join(_assumptions(planned, scale)), highlight=False, soft_wrap=True)


def _collectives(rows: Sequence[Mapping[str, Any]], name: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=f"Collectives of a step, {name}", title_justify="left")
    table.add_column("")
    for title in ("operation", "GB", "GB sent by a rank", "seconds"):
        table.add_column(title, justify="right")
    for row in rows:
        if row["size"]:
            sizes = [_number(row[key] / 1e9) for key in ("size", "sent")]
            table.add_row(row["name"], row["operation"], *sizes, _number(row["seconds"]))
    return table


def _curve(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line per number of GPUs; phases that take no time are left out."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
    phases = [phase for phase in rows[-1]["phases"] if any(row["phases"][phase] for row in rows)]
    table.add_column("GPUs", justify="right")
    table.add_column("mode")
    for name in (*phases, "step, s", "eff."):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in rows:
        mode = f"{row['shard']}{'*' if row['fits'] is False else ''}"
        seconds = [_number(row["phases"][phase]) for phase in phases]
        share = row["efficiency"]
        bar = "█" * round(BAR * min(1.0, share)) or "▏"
        table.add_row(str(row["gpus"]), mode, *seconds, _number(row["seconds"]), f"{share:.0%}", bar)
    return table


def _assumptions(planned: Mapping[str, Any], scale: Mapping[str, Any]) -> list[str]:
    cluster, gpu = planned["cluster"], planned["cluster"]["seconds_of"]
    measured = "measured on one H200" if gpu == MEASURED_GPU else f"of an H200, with the peak and bandwidth of {gpu}"
    lines = [
        f"Seconds of a GPU ({gpu}): from constants {measured}; a decoded token costs a + b·rows. Rewards, the record "
        "and evaluations are not counted.",
        *(
            f"{name}: assumed {link['bandwidth'] / 1e9:g} GB/s; {link['stands_for']}."
            for name, link in cluster["links"].items()
        ),
        "Collectives run around a ring at its slowest link, without overlap. NCCL, NVLink and networks were not "
        "measured.",
    ]
    if idle := scale["step"]["idle"]:
        lines.append(f"{idle} of {cluster['ranks']} ranks have no prompt: use more prompts per step.")
    if any(row["fits"] is False for row in (*scale["strong"], *scale["weak"])):
        lines.append("* does not fit in memory.")
    if not planned["gpu"]:
        lines.append("The mode is picked for a GPU: name one (--gpu h200).")
    return lines


def _merged(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the same numbers merged, under all their names."""
    columns: dict[str, dict[str, Any]] = {}
    for row in rows:
        numbers = json.dumps([row["memory"], row["flops"]])
        if numbers in columns:
            columns[numbers]["algorithm"] += f"\n{row['algorithm']}"
        else:
            columns[numbers] = dict(row)
    return list(columns.values())


def _sums(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [sum(row["flops"].values()) for row in rows]


def _table(
    title: str, rows: Sequence[Mapping[str, Any]], key: str, unit: float, total: tuple[str, Sequence[float]]
) -> Table:
    """A column per algorithm; rows that are 0 for all are left out."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(title)
    for row in rows:
        table.add_column(row["algorithm"], justify="right")
    for name in rows[0][key]:
        values = [row[key][name] for row in rows]
        if any(values):
            table.add_row(name, *(_number(value / unit) for value in values))
    table.add_section()
    table.add_row(total[0], *(_number(value / unit) for value in total[1]))
    return table


def _number(value: float) -> str:
    """
    >>> [_number(value) for value in (0, 0.00123, 3.14159, 123.4)]
    ['–', '0.0012', '3.14', '123']
    """
    if not value:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}" if value >= 0.01 else f"{value:.2g}"


def _rollouts(planned: Mapping[str, Any]) -> str:
    """A line for each size of the KV cache: how many rows a rollout decodes at once."""
    limit = planned["work"]["new_tokens"]
    names: dict[int, list[str]] = {}
    for row in planned["algorithms"]:
        names.setdefault(row["cache_blocks"], []).append(row["algorithm"])
    rollouts = {row["cache_blocks"]: row["rollout"] for row in planned["algorithms"]}
    mean = next(iter(rollouts.values()))["mean_new_tokens"]
    lines = [f"Rollout with completions of {mean} tokens on average (geometric, at most {limit}):"]
    for blocks, found in rollouts.items():
        again = f"{found['tokens_again'] / found['tokens']:.2g} of all tokens sampled again"
        dropped = f"{found['dropped']} rows dropped, {again}" if found["dropped"] else "no row dropped"
        lines.append(
            f"{', '.join(names[blocks])}: KV cache of {blocks} blocks, {found['in_use']:.0%} of it in use; at most "
            f"{found['most_rows']} rows at once, {found['mean_rows']:.0f} on average; {dropped}"
        )
    return "\n".join(lines)


def _verdict(planned: Mapping[str, Any]) -> str:
    gpu, rows = planned["gpu"], _merged(planned["algorithms"])
    has = f"{gpu['name']} has {gpu['bytes'] / GIB:.0f} GiB, {gpu['usable'] / GIB:.0f} of them for tensors"
    fits = ", ".join(row["algorithm"] for row in planned["algorithms"] if row["fits"])
    lines = [f"{has}: " + (f"{fits} would fit." if fits else "nothing here would fit.")]
    for row in rows:
        if not row["fits"]:
            row = {**row, "algorithm": row["algorithm"].replace("\n", ", ")}
            worst = max(row["phases"], key=row["phases"].get)
            lacks = f"{(row['peak'] - gpu['usable']) / GIB:.1f} GiB"
            lines.append(f"{row['algorithm']} lacks {lacks}, in its {worst}: {row['advice']}")
    return "\n".join(lines)
