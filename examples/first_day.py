"""A first day: own prompts without answers, an own reward, LoRA, a crash in the middle, and the model in transformers.

    python examples/first_day.py                # smollm2 (135 M parameters), in the new folder first-day
    python examples/first_day.py nano there     # a 0.2 M-parameter model, in the new folder there

Each command is printed before it runs; copy them to do the same with your own files.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

MODEL = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
FOLDER = Path(sys.argv[2] if len(sys.argv) > 2 else "first-day")
GRPO = [sys.executable, "-m", "grpo.cli.main"]
TRAIN = [
    *("train", "--model", MODEL, "--data", "rows.jsonl", "--reward", "reward.py:digits", "--run", "first"),
    *("--steps", "3", "--prompts-per-step", "8", "--group-size", "4", "--max-new-tokens", "24", "--lr", "3e-4"),
    *("--lora.rank", "8", "--checkpoint-every", "1", "--evaluation.problems", "8"),
]
REWARD = '''\
"""The reward of the first day: answers should be digits."""

import time


def digits(completions, **columns):
    """The share of digits in each completion. Called once for each group."""
    time.sleep(0.1)  # stands for a slow checker
    return [sum(map(str.isdigit, text)) / max(1, len(text)) for text in completions]
'''


def main() -> None:
    if FOLDER.exists():
        sys.exit(f"{FOLDER} exists: name a new folder, as in: first_day.py {MODEL} another")
    FOLDER.mkdir(parents=True)
    write_files()
    headline("2. Check rows and reward before a GPU is paid for")
    grpo("check", "--data", "rows.jsonl", "--reward", "reward.py:digits", "--problems", "10")
    headline(
        "3. Train LoRA adapters for three steps, and kill the process in the middle (SIGKILL, as the kernel would)"
    )
    kill_in_the_middle()
    headline("4. Resume: the same command and --resume. The weights are those of a run that was never killed")
    grpo(*TRAIN, "--resume")
    done = state()
    expect((done["status"], done["steps"]) == ("finished", 3), "the resumed run did not finish its 3 steps")
    headline("5. Export: the adapters are merged into a plain Hugging Face folder")
    grpo("export", "first", "model")
    headline("6. Load it with transformers, without grpo")
    use_with_transformers()
    print(f"\nDone. Everything is in {FOLDER}. To see why each update happened: cd {FOLDER} && grpo lab")


def write_files() -> None:
    headline("1. Write prompts without answers, and a reward function")
    rows = [{"prompt": f"{a}+{b}+11="} for a in range(10, 20) for b in range(10, 20)]
    lines = [json.dumps(row) for row in rows]
    (FOLDER / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (FOLDER / "reward.py").write_text(REWARD, encoding="utf-8")
    print(f"rows.jsonl: {len(rows)} rows, the first is {lines[0]}\nreward.py:\n{REWARD}")


def kill_in_the_middle() -> None:
    """Starts the training, and kills it once its first checkpoint is there."""
    print("$ grpo", *TRAIN, flush=True)
    process = subprocess.Popen([*GRPO, *TRAIN], cwd=FOLDER)
    while not (saved := sorted(FOLDER.glob("runs/first/checkpoints/step-*"))):
        expect(process.poll() is None, "the training ended before its first checkpoint")
        time.sleep(0.01)
    process.kill()
    process.wait()
    status = state()["status"]
    print(f"killed after the checkpoint {saved[-1].name}; status of the run: {status}")
    expect(status == "killed", "the training finished before it could be killed")


def use_with_transformers() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "model")
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "model")
    prompt = tokenizer("12+13+11=", return_tensors="pt", add_special_tokens=False)
    written = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(written[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    expect(written.shape[1] > prompt["input_ids"].shape[1], "the exported model wrote nothing")
    print(f"{type(model).__name__} from {FOLDER / 'model'}: 12+13+11= → {answer!r}")


def grpo(*arguments: str) -> None:
    """Prints the command and runs it; where it fails, this script fails."""
    print("$ grpo", *arguments, flush=True)
    code = subprocess.run([*GRPO, *arguments], cwd=FOLDER).returncode
    expect(code == 0, f"grpo {arguments[0]} ended with exit code {code}")


def state() -> dict:
    """The run's record, as JSON."""
    return json.loads(subprocess.check_output([*GRPO, "runs", "first", "--json"], cwd=FOLDER, text=True))


def expect(condition: bool, otherwise: str) -> None:
    if not condition:
        sys.exit(f"first_day.py: {otherwise}")


def headline(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    main()
