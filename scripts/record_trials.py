"""Records the trials that ship with the lab, with the function that trains them in a chapter.

python scripts/record_trials.py              missing trials, and those whose settings have changed
python scripts/record_trials.py NAME ...     these trials
"""

from __future__ import annotations

import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from grpo.lab.chapters import all_trials, rewards
from grpo.lab.trials.outcome import Outcome
from grpo.lab.trials.perform import perform
from grpo.lab.trials.recorded import RECORDED, recorded, write
from grpo.lab.trials.spec import Trial

VERSIONS = ("torch", "transformers")


def main() -> None:
    trials = all_trials()
    wanted = sys.argv[1:] or [name for name in trials if is_stale(name, Trial.of(trials[name], rewards()))]
    if unknown := set(wanted) - set(trials):
        raise SystemExit(f"no chapter has the trial {', '.join(sorted(unknown))}; available: {', '.join(trials)}")
    for name in wanted:
        trial = Trial.of(trials[name], rewards())
        outcome, begun = Outcome(trial), time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            perform(trial, Path(folder), outcome.add)
        seconds = time.process_time() - begun
        file = RECORDED / f"{name}.json"
        write(file, outcome, {package: metadata.version(package) for package in VERSIONS}, seconds)
        print(f"{name}: {outcome.steps_done} steps, {seconds:.0f} s, {file.stat().st_size:,} bytes", flush=True)


def is_stale(name: str, trial: Trial) -> bool:
    kept = recorded(name)
    return kept is None or kept["outcome"]["trial"] != trial.as_json()


if __name__ == "__main__":
    main()
