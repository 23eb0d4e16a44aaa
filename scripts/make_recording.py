"""Records the run that ships with the lab: `tiny` learns arithmetic, with every completion and some tokens.

    python scripts/make_recording.py        about three minutes on one CPU core

Each batch has eight updates instead of one, so that ratios leave 1 and clipping becomes visible.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path

import grpo
from grpo.config import Config, Evaluation, Optimizer, System

INTO = Path(__file__).parents[1] / "src/grpo/lab/recordings/tiny-arithmetic"
MOST_BYTES = 5_000_000
CONFIG = Config(
    model="tiny",
    run=INTO.name,
    steps=80,
    checkpoint_every=0,
    optimizer=Optimizer(epochs=2, minibatches=4),
    evaluation=Evaluation(every=10, problems=150, probes=6),
    system=System(token_groups=2, threads=1, device="cpu"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=INTO)
    into = parser.parse_args().into
    with tempfile.TemporaryDirectory() as scratch:
        config = replace(CONFIG, system=replace(CONFIG.system, runs=scratch))
        with grpo.train(config) as run:
            for row in run.evals():
                print(f"after {row['step']:3} steps: held-out accuracy {row['accuracy']:.1%}")
            into.mkdir(parents=True, exist_ok=True)
            (into / "run.db").unlink(missing_ok=True)
            pack(run.path / "run.db", into / "run.db")
    size = (into / "run.db").stat().st_size
    print(f"{into / 'run.db'}: {size:,} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"the recording is larger than {MOST_BYTES:,} bytes; record fewer steps")


def pack(source: Path, target: Path) -> None:
    """Write one file without a write-ahead log, so that it opens in a read-only folder."""
    db = sqlite3.connect(source)
    db.execute("UPDATE meta SET value = json_set(value, '$.system.runs', 'runs') WHERE key = 'config'")
    db.execute("UPDATE meta SET value = json_array('grpo', 'train') WHERE key = 'command'")
    db.execute("UPDATE meta SET value = 'null' WHERE key = 'git'")
    db.execute("UPDATE meta SET value = json_set(value, '$.hosts[0]', 'localhost') WHERE key = 'world'")
    db.commit()
    db.execute("VACUUM INTO ?", (str(target),))
    db.close()
    db = sqlite3.connect(target)
    db.execute("PRAGMA journal_mode = DELETE")
    db.close()


if __name__ == "__main__":
    main()
