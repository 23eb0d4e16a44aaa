"""Strong and weak scaling of a training step on this machine: 1, 2, 4, … ranks, as a table and a picture.

python benchmarks/scaling.py --gpus 8 --shape qwen2.5-1.5b --prompts 64 --group 8 --prompt-tokens 256 --new 640
python benchmarks/scaling.py --gpus 2 --shape smollm2-135m --device cpu --prompts 4 --group 4 --new 16 [--json]

Strong scaling: --prompts on all ranks together. Weak scaling: --prompts for each rank. Weights are random, rewards are
noise, and every completion has full length. Seconds are the median of the steps after the first; efficiency is the
speed of N ranks divided by N times that of one. "Idle" is the share of a step that ranks wait at stations, for each
other and for the network, on average over the ranks. On a CPU every rank has --threads threads. Beside it stands what
`grpo plan` predicts for GPUs: for this one, or else for the H200 that was measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tests import this module from another folder

import torch
from recipes import random_weights
from shapes import SHAPES

from grpo.config import Config, Evaluation, Optimizer, Scale, System
from grpo.config.presets import PRESETS
from grpo.distributed.launch import launch
from grpo.distributed.world import joined
from grpo.errors import LostRankError
from grpo.model.plan import PRECISIONS, shape_of
from grpo.model.plan.gpus import MEASURED_GPU, timed_gpu
from grpo.model.plan.links import LINKS, Cluster
from grpo.model.plan.scaling import Run, curve, doublings
from grpo.model.plan.work import Work, needs
from grpo.training.loop import loop
from grpo.training.session import Session

ALGORITHM = "dr_grpo"
KINDS = ("strong", "weak")


def train_as_rank(arguments: argparse.Namespace) -> None:
    """Trains as one rank of several, or alone; rank 0 writes what it measured to --result."""
    with (
        random_weights(arguments.shape, arguments.prompt_tokens) as model,
        tempfile.TemporaryDirectory() as runs,
    ):
        config = Config(
            model=model,
            task="noise",
            algorithm=ALGORITHM,
            run="measured",
            steps=arguments.steps,
            prompts_per_step=arguments.prompts,
            group_size=arguments.group,
            max_new_tokens=arguments.new,
            lr=1e-6,
            checkpoint_every=0,
            optimizer=Optimizer(warmup_steps=0),
            evaluation=Evaluation(every=0, problems=2, probes=0),
            system=System(
                runs=runs,
                device=arguments.device,
                threads=arguments.threads if arguments.device == "cpu" else 0,
                token_budget=arguments.token_budget,
            ),
            scale=Scale(shard=arguments.shard),
        )
        with joined(config.scale, config.system.device) as world:
            session = Session.start(config, world=world)
            session.checkpoint = lambda *_, **__: None  # type: ignore[method-assign]  # no checkpoints
            with session.recorded():
                loop(session)
        if not world.first:
            return
        backend = torch.distributed.get_backend(world.tensors) if world.size > 1 else ""
        found = measurements(session.run.spans(), session.run.metrics(), world.size)
        arguments.result.write_text(json.dumps({**found, "backend": backend}))
        session.run.close()


def measurements(
    spans: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Any]], ranks: int
) -> dict[str, Any]:
    """Medians over the steps after the first, which warms up."""
    rows = []
    for metric in metrics[1:]:
        phases = {span["name"]: span["seconds"] for span in spans if span["step"] == metric["step"]}
        seconds = sum(phases.values())
        idle = statistics.fmean(metric[f"idle/{rank}"] for rank in range(ranks)) if ranks > 1 else 0.0
        rows.append({"seconds": seconds, "idle": idle, "waited": idle * seconds, "tokens": metric["tokens"]})
    return {
        "seconds": statistics.median(row["seconds"] for row in rows),
        "tokens_per_second": statistics.median(row["tokens"] / row["seconds"] for row in rows),
        "idle": statistics.median(row["idle"] for row in rows),
        "waited": statistics.median(row["waited"] for row in rows),
        "steps": [round(row["seconds"], 4) for row in rows],
    }


def with_efficiency(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tokens per second of each row, divided by those of as many single ranks."""
    alone = rows[0]["tokens_per_second"]
    return [{**row, "efficiency": row["tokens_per_second"] / (row["ranks"] * alone)} for row in rows]


def measure(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Rows by kind of scaling. One rank is the same for both."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for ranks in doublings(arguments.gpus):
        for kind in KINDS:
            prompts = arguments.prompts * (ranks if kind == "weak" else 1)
            if (ranks, prompts) not in found:
                print(f"{ranks} ranks, {prompts} prompts …", file=sys.stderr, flush=True)
                found[ranks, prompts] = run_ranks(arguments, ranks, prompts)
            rows[kind].append({"ranks": ranks, "prompts": prompts, **found[ranks, prompts]})
    return {kind: with_efficiency(each) for kind, each in rows.items()}


def run_ranks(arguments: argparse.Namespace, ranks: int, prompts: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result")
        own = {"device": arguments.device, "prompts": prompts, "result": result}
        flags = [word for name, value in own.items() for word in (f"--{name}", str(value))]
        command = ["-W", "ignore", __file__, *sys.argv[1:], *flags]
        try:
            code = launch(Scale(gpus=ranks, restarts=0), command)
        except LostRankError as error:
            sys.exit(f"scaling.py: {error}")
        if code:
            sys.exit(code)  # the ranks have printed the error
        return json.loads(result.read_text())


def predict(arguments: argparse.Namespace, gpu: str) -> dict[str, list[dict[str, Any]]]:
    """The curves of `grpo plan` for the same work."""
    run = Run(
        shape=shape_of(SHAPES[arguments.shape].to_dict(), arguments.shape),
        work=Work(
            prompts=arguments.prompts,
            group_size=arguments.group,
            prompt_tokens=arguments.prompt_tokens,
            new_tokens=arguments.new,
            token_budget=arguments.token_budget or Work.token_budget,
        ),
        needs=needs(PRESETS[ALGORITHM].settings),
        precision=PRECISIONS["mixed"],
        gpu=gpu,
        shard=arguments.shard,
    )
    cluster = Cluster.read(arguments.gpus, 1, arguments.link)
    return {kind: curve(run, cluster, weak=kind == "weak") for kind in KINDS}


def machine(device: str) -> str:
    if device.startswith("cuda"):
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"


def table(report: Mapping[str, Any]) -> str:
    work, lines = report["work"], []
    completion = f"{work['group']} completions of {work['prompt_tokens']} + {work['new']} tokens"
    assumed = f"{report['gpu']}, {report['link']}"
    for kind in KINDS:
        each = "for each rank" if kind == "weak" else "in all"
        lines += [
            f"{kind} scaling: {work['shape']}, {work['prompts']} prompts {each}, {completion}",
            f"{'ranks':>6}{'s/step':>10}{'tokens/s':>11}{'efficiency':>12}{'idle':>7}{'at stations':>13}"
            f"   predicted ({assumed}): s/step, efficiency",
        ]
        for row, plan in zip(report["measured"][kind], report["predicted"][kind], strict=True):
            lines.append(
                f"{row['ranks']:>6}{row['seconds']:>10.4g}{row['tokens_per_second']:>11,.0f}{row['efficiency']:>12.0%}"
                f"{row['idle']:>7.0%}{row['waited']:>11.4g} s{plan['seconds']:>18.4g}{plan['efficiency']:>8.0%}"
            )
    return "\n".join([*lines, f"measured on {report['machine']}", *report["notes"]])


def notes(arguments: argparse.Namespace, backends: set[str]) -> list[str]:
    """What the figures leave out."""
    found = []
    if "nccl" not in backends:
        found.append(
            f"not measured: NCCL, NVLink and networks between machines; ranks met through {', '.join(backends)}"
        )
    if arguments.device == "cpu":
        threads = f"{arguments.gpus * arguments.threads} threads on {os.cpu_count()} cores"
        found.append(
            f"ranks are processes of {arguments.threads} thread each, at most {threads}; the prediction is of GPUs"
        )
    elif ":" in arguments.device:
        found.append("all ranks share one GPU: no speed-up is expected")
    return found


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Plots the speed of N ranks relative to one, and weak scaling's efficiency, measured and predicted."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed", file=sys.stderr)
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for axis, kind in zip(axes, KINDS, strict=True):
        for source, style in (("measured", "o-"), ("predicted", "s--")):
            rows = report[source][kind]
            ranks = [row.get("ranks", row.get("gpus")) for row in rows]
            speeds = [row["efficiency"] * count for row, count in zip(rows, ranks, strict=True)]
            label = "measured" if source == "measured" else f"predicted ({report['gpu']}, {report['link']})"
            axis.plot(ranks, speeds, style, label=label)
        axis.plot(ranks, ranks, color="0.6", linewidth=0.8, linestyle=":", label="ideal")
        axis.set_title(f"{kind} scaling", fontsize=10)
        axis.set_xlabel("ranks")
        axis.set_xticks(ranks)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("tokens per second, relative to one rank")
    axes[0].legend(loc="upper left", frameon=False)
    work = report["work"]
    title = f"{work['shape']}, {work['prompts']} × {work['group']}, {work['prompt_tokens']} + {work['new']} tokens"
    figure.suptitle(f"{title}; {report['machine']}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="smollm2-135m", help=", ".join(SHAPES))
    parser.add_argument("--gpus", type=int, default=2, help="most ranks; on a CPU: processes")
    parser.add_argument(
        "--device", default="", help="cuda, cuda:0 (shared by all ranks) or cpu; default: cuda, else cpu"
    )
    parser.add_argument("--shard", default="auto", choices=["auto", "none", "optimizer", "weights"])
    parser.add_argument("--prompts", type=int, default=8, help="prompts per step; weak scaling: for each rank")
    parser.add_argument("--group", type=int, default=8, help="completions per prompt")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens of a completion")
    parser.add_argument("--token-budget", type=int, default=0, help="tokens per micro-batch; default: what fits")
    parser.add_argument("--steps", type=int, default=6, help="training steps; the first does not count")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each rank")
    parser.add_argument("--link", default="nvlink", help=f"for the prediction: {', '.join(LINKS)}")
    parser.add_argument("--picture", type=Path, default=Path("scaling.png"), help="file of the picture")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps < 2:
        parser.error(f"--steps {arguments.steps}: the first step does not count; use 2 or more")
    arguments.device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.result:
        train_as_rank(arguments)
        return
    on_gpu = arguments.device.startswith("cuda")
    if arguments.device == "cuda" and torch.cuda.device_count() < arguments.gpus:
        parser.error(
            f"--gpus {arguments.gpus}: this machine has {torch.cuda.device_count()}; lower it, or --device cuda:0"
        )
    gpu = timed_gpu(torch.cuda.get_device_name()) if on_gpu else MEASURED_GPU
    measured = measure(arguments)
    backends = {row["backend"] for rows in measured.values() for row in rows if row["backend"]}
    report = {
        "work": {name: value for name, value in vars(arguments).items() if name not in ("picture", "result", "json")},
        "machine": machine(arguments.device),
        "gpu": gpu,
        "link": arguments.link,
        "measured": measured,
        "predicted": predict(arguments, gpu),
        "notes": notes(arguments, backends),
    }
    draw(report, arguments.picture)
    print(json.dumps(report) if arguments.json else table(report))


if __name__ == "__main__":
    main()
