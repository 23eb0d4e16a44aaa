"""The command line as a person meets it: what works, and one line for every mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import transformers

from grpo.cli.main import main
from grpo.record.store import Run

SMALL = ["--model", "nano", "--steps", "2", "--prompts-per-step", "2", "--group-size", "4", "--max-new-tokens", "32"]
QUICK = [*SMALL, "--evaluation.problems", "10", "--evaluation.every", "0", "--system.threads", "1"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["train", *QUICK, "--run", "trained"]) == 0
    return capsys.readouterr().out


MISTAKES = {
    "unknown command": (["trian"], "unknown command", "did you mean train"),
    "unknown field": (["train", "--stepz", "3"], "field stepz (command line): unknown", "--steps"),
    "unknown nested field": (["train", "--beat", "0.1"], "field beat (command line): unknown", "--loss.beta"),
    "wrong type": (["train", "--steps", "many"], "field steps (command line)", "whole number"),
    "group of one": (["train", "--group-size", "1"], "field group_size", "at least 2"),
    "no steps": (["train", "--steps", "0"], "field steps", "at least 1"),
    "negative lr": (["train", "--lr", "-0.1"], "field lr", "above 0"),
    "zero temperature": (["train", "--temperature", "0"], "field temperature", "above 0"),
    "top-p": (["train", "--top-p", "0.9"], "field top-p", "ratio"),
    "top_k": (["train", "--top_k=40"], "field top_k", "ratio"),
    "unknown model": (["train", "--model", "tinny"], "field model", "calculator, guess, nano, smollm2, tiny"),
    "unknown task": (["train", "--task", "algebra"], "field task", "arithmetic"),
    "unknown preset": (["train", "--algorithm", "grop"], "field algorithm", "grpo, dr_grpo"),
    "path as run name": (["train", "--run", "../elsewhere"], "field run", "no folder"),
    "resume without a name": (["train", "--resume"], "field resume", "--run NAME"),
    "missing recipe": (["train", "nowhere.toml"], "nowhere.toml", "no such file"),
    "no GPU": (["train", "--system.device", "cuda:7"], "field system.device", "no GPU was found"),
    "sft without data": (["sft", "nano"], "field data", "--data"),
    "sft with missing data": (["sft", "nano", "nowhere.jsonl"], "field data", "nowhere.jsonl"),
    "eval without model": (["eval"], "field model", "--model"),
    "eval without task": (["eval", "./empty"], "field model", "config.json"),
    "eval, setting of rows": (["eval", "nano", "--dataset.prompt", "q"], "field dataset.prompt", "own problems"),
    "sample, setting of rows": (["sample", "nano", "--dataset.split", "x"], "field dataset.split", "own problems"),
    "threads": (["train", "--model", "nano", "--system.threads", "100000"], "system.threads", "between 0 and 1024"),
    "sample none": (["sample", "nano", "1+1=", "-n", "0"], "field count", "at least 1"),
    "sample top-p": (["sample", "nano", "1+1=", "--top-p", "1.5"], "field top_p", "at most 1"),
    "sample min-p": (["sample", "nano", "1+1=", "--min-p", "-0.1"], "field min_p", "between 0 and 1"),
    "min_p": (["train", "--min-p", "0.1"], "field min-p", "grpo sample and grpo eval accept it"),
    "unknown run": (["runs", "nothing"], "there is no run nothing", "known runs"),
    "export of unknown run": (["export", "nothing", "out"], "there is no run nothing", "known runs"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_2(mistake: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "empty").mkdir()
    arguments, *fragments = MISTAKES[mistake]
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert line.startswith("grpo: ")
    for fragment in fragments:
        assert fragment in line
    assert not (elsewhere / "runs").exists(), "a refused command leaves nothing behind"


def test_mistakes_in_a_recipe_name_file_and_line(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "my.toml").write_text('model = "nano"\n\nlr = "1e-5"\n')
    assert main(["train", "my.toml"]) == 2
    assert "field lr (my.toml:3): expected a number" in capsys.readouterr().err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--model", "tinny", "--debug"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last):")
    assert "unknown model" in shown.splitlines()[-1]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    usage = capsys.readouterr().out
    for command in ("train", "sft", "eval", "sample", "runs", "plan", "export"):
        assert f"grpo {command}" in usage
        with pytest.raises(SystemExit) as exit_:
            main([command, "--help"])
        assert exit_.value.code == 0
        assert "--" in capsys.readouterr().out


def test_the_names_people_type(capsys: pytest.CaptureFixture[str]) -> None:
    typed = (
        "--model nano --task arithmetic:easy --algorithm dr_grpo --steps 7 --prompts-per-step 3 --group-size 5 "
        "--max-new-tokens 20 --temperature 0.9 --lr 1e-5 --seed 4 --run x --resume --checkpoint-every 6 --quiet"
    )
    assert main(["train", *typed.split(), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    for line in ("steps = 7", "group_size = 5", "lr = 1e-05", "resume = true", "quiet = true", 'scale = "none"'):
        assert line in printed


def test_train_ends_with_what_came_of_it(trained: str) -> None:
    assert "\x1b" not in trained
    for fragment in ("held out", "before", "after", "grpo runs trained", "grpo sample trained", "grpo export trained"):
        assert fragment in trained


def test_a_mistyped_run_is_told_its_near_names(trained: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["sample", "traind", "1+1="], ["eval", "traind"], ["train", "--model", "traind"]):
        assert main(argv) == 2
        says = "grpo: field model: unknown model 'traind'; did you mean the run trained? Or use calculator, guess,"
        assert capsys.readouterr().err.startswith(says)
    assert main(["sample", "zzz", "1+1="]) == 2
    assert "unknown model 'zzz'; use a run, or calculator, guess," in capsys.readouterr().err
    assert main(["sample", "traind", "1+1=", "--runs", "nowhere"]) == 2
    assert "unknown model 'traind'; use calculator, guess," in capsys.readouterr().err


def test_a_file_in_place_of_the_folder_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").touch()
    commands = (["runs"], ["runs", "--json"], ["runs", "job"], ["sample", "job", "1+1="], ["lab"], ["export", "a", "b"])
    for argv in commands:
        assert main([*argv, "--runs", "rows.jsonl"]) == 2
        line = "grpo: field runs: rows.jsonl is not a folder; name the one that holds the runs\n"
        assert capsys.readouterr().err == line


def test_runs_as_json(trained: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "trained", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["steps"] == 2
    assert summary["completions"] == 2 * 2 * 4
    assert [row["step"] for row in summary["eval"]] == [0, 2]
    assert all(row["low"] <= row["accuracy"] <= row["high"] for row in summary["eval"])
    assert 0 <= summary["worked_share"] <= 1
    assert main(["runs", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["name"], row["status"], row["steps"]) == ("trained", "finished", 2)
    assert main(["runs"]) == 0
    assert "trained" in capsys.readouterr().out
    assert main(["runs", "trained"]) == 0
    assert "held out" in capsys.readouterr().out


def test_an_existing_run_is_not_overwritten(trained: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *QUICK, "--run", "trained"]) == 2
    error = capsys.readouterr().err
    assert "field run: trained exists" in error
    assert "--resume" in error
    assert "--run OTHER" in error


def test_sample_scores_a_group(trained: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "trained", "12+34+56=", "-n", "6", "--json"]) == 0
    group = json.loads(capsys.readouterr().out)
    assert group["answer"] == "102"
    assert len(group["completions"]) == 6
    for completion in group["completions"]:
        assert completion["reward"] == float(completion["text"].rpartition(")")[2] == "102")
    assert main(["sample", "nano", "12+34+56=", "-n", "6"]) == 0
    assert "12+34+56=" in capsys.readouterr().out
    assert main(["sample", "nano", "12+34", "--json"]) == 0  # no problem of the task: sampled, not scored
    unscored = json.loads(capsys.readouterr().out)
    assert unscored["answer"] is None
    assert {completion["reward"] for completion in unscored["completions"]} == {None}


def test_sample_plays_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = tmp_path / "again.py"
    task.write_text(
        "from grpo.tasks.arithmetic import Arithmetic\n"
        "class Again(Arithmetic):\n"
        "    def reply(self, problem, turns):\n"
        "        return None if len(turns) > 1 else '12='\n"
    )
    typed = ["sample", "nano", "12+34+56=", "-n", "3", "--task", str(task)]
    assert main([*typed, "--json"]) == 0
    played = json.loads(capsys.readouterr().out)["completions"]
    for done in played:
        first, read, last = done["turns"]
        assert [row["who"] for row in done["turns"]] == ["model", "environment", "model"]
        assert (read["text"], read["tokens"], read["after"]) == ("12=", 3, first["tokens"])
        assert first["tokens"] + last["tokens"] == done["tokens"]
        assert last["text"] == done["text"]
    assert main(typed) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.count(f"{'':26}12=") == len({tuple(row["text"] for row in done["turns"]) for done in played})
    assert main(["eval", "nano", "--problems", "4", "--task", str(task)]) == 0
    assert "mean turns 2.0, tool calls 0.00 an episode" in capsys.readouterr().out


SUMS = """
class Sums:
    def reset(self, seed):
        return f"{seed % 90 + 10}+12="
    def step(self, text):
        if not text.endswith("5"):
            raise ConnectionError("no server")
        return None, 0.5, True
class Sized(Sums):
    def step(self, text):
        return str(len(text)), float(len(text)), True
"""


def test_sample_of_an_environment_needs_no_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sums.py"
    file.write_text(SUMS)
    [sized, sums] = [["sample", "nano", "--env", f"{file}:{name}"] for name in ("Sized", "Sums")]
    assert main([*sized, "-n", "3", "--json"]) == 0
    group = json.loads(capsys.readouterr().out)
    assert group["prompt"].endswith("+12=")
    assert [done["reward"] for done in group["completions"]] == [len(done["text"]) for done in group["completions"]]
    assert main([*sized, "7+", "-n", "3", "--json"]) == 0  # a prompt is played, too: reset adds its text
    group = json.loads(capsys.readouterr().out)
    assert all(done["reward"] == len(done["text"]) for done in group["completions"])
    assert main([*sums, "-n", "4", "--temperature", "0"]) == 0
    printed = capsys.readouterr().out
    assert "1 turn, environment: failure (ConnectionError: no server (File " in printed
    assert "Traceback" not in printed
    assert main(["sample", "nano", "-n", "2", "--json"]) == 0
    group = json.loads(capsys.readouterr().out)
    assert group["prompt"].endswith("=")
    assert group["answer"].isdigit()


def test_eval_of_a_run(trained: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "trained", "--problems", "10", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert main(["runs", "trained", "--json"]) == 0
    recorded = json.loads(capsys.readouterr().out)["eval"][-1]
    assert row["accuracy"] == recorded["accuracy"]
    assert row["greedy_accuracy"] == recorded["greedy_accuracy"]
    assert main(["eval", "nano", "--problems", "10"]) == 0
    assert "95% interval" in capsys.readouterr().out


def test_eval_of_a_run_repeats_its_last_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own seed, temperature and number of problems, none of which is a default."""
    monkeypatch.chdir(tmp_path)
    settings = ["--seed", "3", "--temperature", "0.7", "--evaluation.problems", "37", "--max-new-tokens", "24"]
    assert main(["train", *QUICK, *settings, "--run", "job", "--quiet"]) == 0
    with Run.open(Path("runs"), "job", readonly=True) as run:
        recorded = run.evals()[-1]
    capsys.readouterr()
    assert main(["eval", "job", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row.pop("model"), row.pop("task"), row.pop("problems")) == ("job", "arithmetic:easy", 37)
    assert row == {name: recorded[name] for name in row}
    assert main(["eval", "job", "--json", "--seed", "1", "--temperature", "1"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert other["length_mean"] != recorded["length_mean"]
    assert other["greedy_accuracy"] == recorded["greedy_accuracy"]
    with Run.open(Path("runs"), "job") as run:  # earlier versions took settings of rows for any task
        run.set_meta("config", {**run.config, "dataset": {**run.config["dataset"], "chat": False}})
    assert main(["eval", "job", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == recorded["accuracy"]
    assert main(["sample", "job", "-n", "1"]) == 0
    capsys.readouterr()
    assert main(["eval", "job", "--temperature", "-0.5"]) == 2
    assert "field temperature (command line): must be at least 0; got -0.5" in capsys.readouterr().err


def test_eval_of_a_run_reads_the_rows_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, count in {"rows": 40, "other": 5}.items():
        rows = [json.dumps({"ask": f"{n}+1=", "gold": str(n + 1)}) for n in range(count)]
        Path(f"{name}.jsonl").write_text("\n".join(rows))
    columns = ["--dataset.prompt", "ask", "--dataset.answer", "gold"]
    assert main(["train", "--model", "nano", "--data", "rows.jsonl", *columns, *QUICK[2:], "--run", "job"]) == 0
    evaluate = ["eval", "job", "--max-new-tokens", "4", "--json"]
    capsys.readouterr()
    assert main([*evaluate, "--dataset.heldout", "other.jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == 5
    assert main([*evaluate, "--dataset.heldout", "none.jsonl"]) == 2
    assert "field dataset.heldout: no file none.jsonl" in capsys.readouterr().err
    assert main([*evaluate, "--dataset.prompt", "question"]) == 2
    assert "question" in capsys.readouterr().err


def test_a_run_of_fine_tuning_has_no_problems_to_evaluate(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}')
    assert main(["sft", "nano", "rows.jsonl", "--steps", "1", "--run", "tuned", "--system.threads", "1"]) == 0
    assert main(["eval", "tuned"]) == 2
    assert capsys.readouterr().err == "grpo: field task: missing; name the problems with --task NAME or --data FILE\n"


def test_settings_of_rows_change_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"ask": f"{n}+1=", "gold": str(n + 1)}) for n in range(40)]
    Path("rows.jsonl").write_text("\n".join(rows))
    settings = ["--dataset.prompt", "ask", "--dataset.answer", "gold", "--dataset.heldout-share", "0.5"]
    settings += ["--dataset.template", "{ask}"]
    assert main(["train", "--model", "nano", "--data", "rows.jsonl", *settings, *QUICK[2:], "--run", "job"]) == 0
    capsys.readouterr()
    evaluate = ["eval", "job", "--problems", "40", "--max-new-tokens", "4", "--json"]
    heldout = []
    for share in ([], ["--dataset.heldout-share", "0.1"]):  # also one that is the default
        assert main([*evaluate, *share]) == 0
        heldout.append(json.loads(capsys.readouterr().out)["problems"])
    assert heldout == [22, 2]
    assert main(["train", "--model", "job", "--dataset.heldout-share", "0.1", "--dry-run"]) == 0
    dataset = tomllib.loads(capsys.readouterr().out)["dataset"]
    assert (dataset["prompt"], dataset["heldout_share"]) == ("ask", 0.1)
    assert main([*evaluate, "--data", "rows.jsonl", *settings[:4]]) == 0
    not_used = "grpo: dataset.template of the run is not used with --data; add it, or name the rows with --dataset.h"
    assert capsys.readouterr().err.startswith(not_used)
    assert main([*evaluate, "--data", "rows.jsonl", *settings]) == 0
    assert "not used" not in capsys.readouterr().err


def test_a_stop_string_ends_completions_in_training_evaluation_and_samples(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = ["--stop", "1", "--stop", "(2"]
    assert main(["train", *QUICK, *stop, "--run", "job", "--quiet"]) == 0
    assert main(["train", *QUICK, "--steps", "3", "--run", "job", "--quiet", "--resume"]) == 2
    assert "stop was ['1', '(2'], is []" in capsys.readouterr().err
    assert main(["train", *QUICK, *stop, "--steps", "3", "--run", "job", "--quiet", "--resume"]) == 0
    with Run.open(Path("runs"), "job", readonly=True) as run:
        recorded, done = run.evals()[-1], [c for group in run.groups(2) for c in group["completions"]]
    assert any(c["text"].endswith(("1", "(2")) for c in done)
    for c in done:
        ended = c["text"].endswith(("1", "(2"))
        assert "1" not in c["text"][:-1]
        assert c["finish"] == "stop" or (not ended and c["length"] == 32)
        assert c["length"] == len(c["text"]) + (c["finish"] == "stop" and not ended)
    capsys.readouterr()
    assert main(["eval", "job", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["length_mean"] == recorded["length_mean"]
    assert main(["eval", "job", "--stop", "=", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["length_mean"] > recorded["length_mean"]
    for arguments in (["sample", "job", "12+34="], ["sample", "nano", "12+34=", *stop]):
        assert main([*arguments, "-n", "6", "--json"]) == 0
        texts = [c["text"] for c in json.loads(capsys.readouterr().out)["completions"]]
        assert any(text.endswith(("1", "(2")) for text in texts)
        assert all("1" not in text[:-1] for text in texts)
    # Every answer has a digit, so no completion reaches the limit, and none is right.
    digits = [word for digit in "0123456789" for word in ("--stop", digit)]
    checked = ["check", "arithmetic:easy", "--problems", "8", "--model-problems", "4", "--max-new-tokens", "6"]
    assert main([*checked, "--model", "nano", *digits, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["truncated"] == 0


def test_min_p_of_one_samples_the_likeliest_token(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for how in (["--min-p", "1"], ["--temperature", "0"]):
        assert main(["sample", "nano", "12+34+56=", "-n", "3", *how, "--json"]) == 0
        texts.append({c["text"] for c in json.loads(capsys.readouterr().out)["completions"]})
    assert texts[0] == texts[1]
    assert len(texts[0]) == 1
    assert main(["eval", "nano", "--problems", "10", "--min-p", "1", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["accuracy"] == row["greedy_accuracy"]


def test_export_is_a_plain_hugging_face_folder(
    trained: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "trained", "mine"]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained("mine")
    assert model.config.model_type == "llama"
    assert transformers.AutoTokenizer.from_pretrained("mine")("1+1=")["input_ids"] == [1, 10, 1, 12]
    assert main(["export", "trained", "mine"]) == 2
    assert "exists and is not empty" in capsys.readouterr().err


def test_quiet_prints_three_lines_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *QUICK, "--quiet"]) == 0
    assert 1 <= len(capsys.readouterr().out.strip().splitlines()) <= 3


def test_from_a_shell_resume_continues_or_starts(elsewhere: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "grpo", "train", *QUICK, "--run", "job", "--resume", "--quiet"]
    for steps in ("1", "3"):
        done = subprocess.run([*command, "--steps", steps], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
    listed = subprocess.run(
        [sys.executable, "-m", "grpo", "runs", "job", "--json"], capture_output=True, env=environment
    )
    assert json.loads(listed.stdout)["steps"] == 3


def test_an_evaluation_that_scores_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(f'{{"prompt": "{n}+11="}}\n' for n in range(10, 40)))
    asked = ["eval", "nano", "--problems", "2", "--max-new-tokens", "4"]
    assert main([*asked, "--data", "rows.jsonl"]) == 2
    assert "field dataset.answer: no column named answer" in capsys.readouterr().err
    # Accuracy, which the task alone decides, does not stand in for a reward that scored nothing.
    Path("none.py").write_text("def none(problem, text):\n    return None\n")
    Path("raises.py").write_text("def raises(problem, text):\n    raise ValueError('odd')\n")
    for reward, why in {
        "none.py:none": "every reward was None",
        "raises.py:raises": r"failure in reward raises.py:raises: ValueError: odd \(File \S+, line 2, in raises\)",
    }.items():
        assert main([*asked, "--task", "arithmetic", "--reward", reward]) == 2
        end = "; correct the reward, or name another \\(--reward\\)\n$"
        assert re.search(f"field reward: no completion was scored: {why}{end}", capsys.readouterr().err)
