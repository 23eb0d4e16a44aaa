"""The linker of modules, recorded answers, and refusals of `grpo lab build` and `grpo lab export`."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from grpo.cli.main import main
from grpo.errors import GrpoError
from grpo.lab.site.build import MARK, _earlier, _write
from grpo.lab.site.export import _parts, export
from grpo.lab.site.link import DECLARATION, DYNAMIC, EXPORT_NAMES, IMPORT, Linker
from grpo.lab.site.page import STATIC, app_script, inline_script, linker
from grpo.lab.site.record import Chunk
from helpers.records import make_run, make_sft_run


def linked(folder: Path, **modules: str) -> str:
    (folder / "vendor").mkdir()
    for name, text in modules.items():
        (folder / f"{'vendor/' * (name == 'lib')}{name}.js").write_text(text)
    return Linker(folder, {"lib": "vendor/lib.js"}).link("main.js")


def test_statements_of_modules_become_those_of_functions(tmp_path: Path) -> None:
    text = linked(
        tmp_path,
        main='import { one as first, two } from "./a.js";\nimport add from "lib";\nconst c = () => import("./c.js");\n',
        a='export const one = 1;\nexport async function two() {}\nexport { three as four } from "./c.js";\n',
        lib="var n=1;export default function(s){return n+s}",
        c="const three = 3;\nexport { three };\n",
    )
    assert 'const { one: first, two: two } = $load("a.js");' in text
    assert 'const add = $load("vendor/lib.js").default;' in text
    assert 'const c = () => $import("./c.js");' in text
    assert '"four": () => $load("c.js").three' in text
    assert "const $default = function(s){return n+s}" in text
    assert text.count("$modules[") == 1 + 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("const a = 1;\nexport let b = a;\n", "main.js, line 2: the linker does not understand this statement"),
        ('import "./a.js"\nimport x, { y } from "./a.js";\n', "main.js, line 2"),
        ("const file = import.meta.url;\n", "main.js: the linker does not understand 'import.meta'"),
        ("const found = await ask();\n", "'const found = await'"),
        ("import(place);\n", "'import('"),
        ('import { x } from "elsewhere";\n', "main.js imports 'elsewhere', which the import map"),
        ('import { x } from "./b.js";\n', "in a circle: main.js -> b.js -> main.js"),
        ('import { x } from "./missing.js";\n', "no module missing.js"),
    ],
)
def test_what_the_linker_does_not_understand_is_refused_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(GrpoError) as refusal:
        linked(tmp_path, main=text, a="", b='import { y } from "./main.js";\n')
    assert problem in str(refusal.value)


def test_every_module_of_the_lab_can_be_linked() -> None:
    app, run = app_script(), linker().link("js/exported.js")
    assert '$modules["js/chapters/loss.js"]' in app
    assert '$modules["js/views/tokens.js"]' in run
    assert '$modules["js/chapters/loss.js"]' not in run


def names(found: re.Match[str]) -> list[str]:
    """Of the module named in this statement; nothing in our modules is renamed by an export."""
    return [name.split(" as ")[0].strip() for name in (found["names"] or "").split(",") if name.strip()]


def test_every_export_is_imported() -> None:
    """By a statement, or by an import() in a module that mentions the name."""
    texts = {file: file.read_text() for file in (STATIC / "js").rglob("*.js")}
    declared = {(file, x[2] or x[3] or x[4]) for file, text in texts.items() for x in DECLARATION.finditer(text)}
    exported = declared | {
        (file, name) for file in texts for x in EXPORT_NAMES.finditer(texts[file]) for name in names(x)
    }
    used = set()
    for file, text in texts.items():
        for found in [*IMPORT.finditer(text), *EXPORT_NAMES.finditer(text)]:
            used |= {((file.parent / (found["path"] or "")).resolve(), name) for name in names(found)}
        for found in DYNAMIC.finditer(text):
            opened = (file.parent / re.sub(r"\$\{\w+\}", "*", found["path"] or found["pattern"])).resolve()
            near = {(module, name) for module, name in exported if module.match(str(opened))}
            used |= {(module, name) for module, name in near if re.search(rf"\b{name}\b", text)}
    assert sorted(f"{file.relative_to(STATIC)}: {name}" for file, name in exported - used) == []


def test_lines_are_short() -> None:
    files = [*(STATIC / "js").rglob("*.js"), *STATIC.glob("css/*.css")]
    lines = {f"{file.name}:{n}": line for file in files for n, line in enumerate(file.read_text().splitlines(), 1)}
    assert [place for place, line in lines.items() if len(line) > 160] == []


def test_a_script_inside_a_page_cannot_end_it() -> None:
    assert inline_script('a = "</script><!-- </SCRIPT>"') == 'a = "<\\/script><\\!-- <\\/SCRIPT>"'


def test_a_chunk_keeps_equal_answers_once() -> None:
    chunk = Chunk()
    for key in ("/a", "/b"):
        chunk.add(key, {"x": [1 / 3, "</script>\u2028"]})
    kept = json.loads(gzip.decompress(base64.b64decode(chunk.packed())))
    assert kept == {"keys": {"/a": 0, "/b": 0}, "answers": [{"x": [0.33333333, "</script>\u2028"]}]}


def test_files_of_others_are_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["lab", "build", str(tmp_path)]) == 2
    assert "has other files (mine.txt); name a new or empty folder" in capsys.readouterr().err
    assert main(["lab", "export", "~tiny-arithmetic", str(tmp_path / "mine.txt")]) == 2
    assert "exists and is not an export" in capsys.readouterr().err
    assert main(["lab", "export", "~tiny-arithmetic", str(tmp_path / "no/run.html")]) == 2
    assert "make it first" in capsys.readouterr().err
    assert main(["lab", "export", "nobody", str(tmp_path / "run.html"), "--runs", str(tmp_path)]) == 2
    assert f"field run: no run 'nobody' in {tmp_path}; --runs names another folder\n" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    "names", ['["../precious.txt"]', '["/etc/hosts"]', '["."]', '["a\\u0000"]', "[1]", '"app.js"', "[", "\xff"]
)
def test_only_files_inside_the_folder_belong_to_an_earlier_site(tmp_path: Path, names: str) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (tmp_path / "precious.txt").write_text("mine")
    (folder / MARK).write_text(names, encoding="latin-1")
    with pytest.raises(GrpoError, match=rf"^field folder: .*{MARK} is not a list of files in this folder"):
        _earlier(folder)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_a_new_site_replaces_the_files_of_the_earlier_one(tmp_path: Path) -> None:
    _write(tmp_path, {"app.js": "old", "data/old.js": b"old"}, set())
    earlier = _earlier(tmp_path)
    assert earlier == {"app.js", "data/old.js", MARK}
    _write(tmp_path, {"app.js": "new", "data/new.js": "new"}, earlier)
    assert _earlier(tmp_path) == {"app.js", "data/new.js", MARK}
    assert (tmp_path / "app.js").read_text() == "new"
    assert not (tmp_path / "data/old.js").exists()


def test_a_misspelled_command_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "buid", "site"]) == 2
    assert 'argument "buid" (command line): unknown; write grpo lab, grpo lab build FOLDER' in capsys.readouterr().err


@pytest.mark.parametrize("megabytes", ["-1", "0"])
def test_an_export_has_a_positive_size(tmp_path: Path, capsys: pytest.CaptureFixture[str], megabytes: str) -> None:
    arguments = ["lab", "export", "~tiny-arithmetic", str(tmp_path / "run.html"), f"--megabytes={megabytes}"]
    assert main(arguments) == 2
    assert f"field megabytes (command line): must be above 0, at most 1,000; got {megabytes}" in capsys.readouterr().err


def test_what_cannot_be_written_is_told_before_anything_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("grpo.lab.site.writing.os.access", lambda folder, mode: False)
    monkeypatch.setattr("grpo.lab.site.build.page", None)
    monkeypatch.setattr("grpo.lab.site.export.Recorder", None)
    assert main(["lab", "build", str(tmp_path / "new/site")]) == 2
    assert f"field folder: cannot write {tmp_path}/new/site: no permission" in capsys.readouterr().err
    assert main(["lab", "export", "~tiny-arithmetic", str(tmp_path / "run.html")]) == 2
    assert f"field file: cannot write {tmp_path}/run.html: no permission" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def exported(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an export says about itself, and its answers."""
    text = file.read_text(encoding="utf-8")
    [facts] = re.findall(r"window\.grpoExport = (.*);\n", text)
    packed = re.findall(r'grpoChunks \?\?= \{\}\)\[".*"\] = "(.*)";\n', text)
    chunks = [json.loads(gzip.decompress(base64.b64decode(chunk))) for chunk in packed]
    answers = {key: chunk["answers"][place] for chunk in chunks for key, place in chunk["keys"].items()}
    return json.loads(facts), answers


@pytest.mark.parametrize(
    ("algorithm", "choice", "why"),
    [
        ("rloo", "kl=k3_ratio", "kl: k3_ratio needs a ratio"),
        ("ppo", "kl=k3_ratio", "kl: k3_ratio needs a ratio"),
        ("gigpo", "scale=batch_std", "turn_weight: compares turns with the mean of their group"),
    ],
)
def test_an_export_has_the_refusals_of_what_if(tmp_path: Path, algorithm: str, choice: str, why: str) -> None:
    """Some choices contradict the run's settings; the page shows why, as with a server."""
    make_run(tmp_path, "mine", steps=1, algorithm=algorithm, evals=())
    export(tmp_path, "mine", tmp_path / "run.html", 10**7, lambda line: None)
    _, answers = exported(tmp_path / "run.html")
    base = "/api/runs/mine/steps/0/whatif"
    assert answers[f"{base}?{choice}"]["error"].startswith(why)
    assert [key for key in answers if key.startswith(base) and "error" not in answers[key]]


def test_an_export_of_fine_tuning_has_the_phases_of_each_step(tmp_path: Path) -> None:
    make_sft_run(tmp_path, "tuned")
    export(tmp_path, "tuned", tmp_path / "run.html", 10**7, lambda line: None)
    _, answers = exported(tmp_path / "run.html")
    spans = [answers[f"/api/runs/tuned/steps/{step}/spans"] for step in range(30)]
    assert [[span["name"] for span in each] for each in spans] == [["update", "record"]] * 30


def test_an_export_says_which_steps_and_groups_it_left_out(tmp_path: Path) -> None:
    """Texts that cannot be compressed, in a file with room for fewer than five whole steps."""
    noise = Random(1)
    make_run(tmp_path, "long", steps=8, groups=8, texts=lambda *place: noise.randbytes(400).hex(), evals=())
    file = tmp_path / "run.html"
    limit = sum(len(part) for part in _parts().values()) + 230_000
    said = export(tmp_path, "long", file, limit, lambda line: None)
    assert file.stat().st_size <= limit
    facts, answers = exported(file)
    steps, groups = facts["steps"], facts["groups"]
    assert 1 < len(steps) < 8
    assert 1 < groups < 8
    assert said.endswith(f" MB, {len(steps)} of 8 steps, at most {groups} groups of each")
    base = "/api/runs/long/steps"
    shown = {step: [group["index"] for group in answers[f"{base}/{step}"]["groups"]] for step in steps}
    assert all(1 < len(kept) <= groups for kept in shown.values())
    # Nothing else is in the file: no other step, no other group, no completion of one in the search.
    places = {
        tuple(map(int, found.groups())) for key in answers if (found := re.match(f"{base}/(\\d+)/groups/(\\d+)", key))
    }
    assert places == {(step, group) for step, kept in shown.items() for group in kept}
    searched = {(row["step"], row["group_index"]) for row in answers["/api/runs/long/completions"]["rows"]}
    assert searched == places
