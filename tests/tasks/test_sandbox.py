"""What a program tries in the sandbox stays in it; and every gold of the task `code` passes there."""

from __future__ import annotations

import errno
import http.server
import os
import platform
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo.errors import GrpoError
from grpo.rewards import Scorer
from grpo.tasks.checkers import sandbox
from grpo.tasks.checkers.sandbox import ProgramLimits, run_program
from grpo.tasks.code import Code, passes_calls, passes_runs, program_in

try:
    sandbox.require()
except GrpoError as why:
    pytest.skip(str(why), allow_module_level=True)


def error_of(program: str, limits: ProgramLimits | None = None) -> str:
    """The last line of the traceback, of a program that must fail."""
    ran = run_program(program, limits=limits)
    assert ran.status not in (0, None), ran
    assert ran.limit == ""
    return ran.error.strip().splitlines()[-1]


def test_a_program_runs() -> None:
    ran = run_program("import sys\nprint(input()[::-1])\nprint('ünten', file=sys.stderr)\nsys.exit(3)", "abc\n")
    assert (ran.output, ran.error, ran.status, ran.limit) == ("cba\n", "ünten\n", 3, "")
    assert run_program("import os; os.kill(os.getpid(), 11)").status == -11
    assert run_program("print(__name__)").output == "__main__\n"
    assert 'File "program.py", line 2' in run_program("x = 1\n1 / 0").error
    assert run_program("import sys; print(len(sys.stdin.read()))", "x" * 1_000_000).output == "1000000\n"


class Greeter(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked = True  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    with http.server.HTTPServer(("127.0.0.1", 0), Greeter) as listening:
        listening.asked = False  # type: ignore[attr-defined]
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield listening
        listening.shutdown()
        thread.join()


def test_no_network(server: http.server.HTTPServer) -> None:
    fetch = f"import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{server.server_port}')"
    assert "Address family not supported" in error_of(fetch)
    assert not server.asked  # type: ignore[attr-defined]
    assert "not supported" in error_of("import socket\nsocket.create_connection(('192.0.2.1', 80), 1)")


def test_no_socket_leaves_the_sandbox() -> None:
    """AF_UNIX is for pairs of sockets; 1 to 45 are all families of today's kernels, AF_VSOCK is 40."""
    opened = """
import socket
for family in range(64):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind).close()
            print(family)
        except OSError as error:
            assert error.errno in (93, 94, 97), (family, kind, error)
"""
    assert set(run_program(opened).output.split()) == {"1"}


MEMORY_OUTSIDE = {
    "memory files": "import os\nfor _ in range(60): os.write(os.memfd_create('x'), bytes(15 << 20))",
    "System V shared memory": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype, libc.shmdt.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for _ in range(9):
    segment = libc.shmget(0, 100 << 20, 0o1600)
    if segment < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    address = libc.shmat(segment, None, 0)
    ctypes.memset(address, 1, 100 << 20)
    libc.shmdt(address)
""",
    "System V messages": """
import ctypes
libc, message = ctypes.CDLL(None, use_errno=True), b"\\1" * 8200
for _ in range(32000):
    queue = libc.msgget(0, 0o1600)
    if queue < 0:
        raise OSError(ctypes.get_errno(), "msgget")
    for _ in range(2):
        libc.msgsnd(queue, message, 8192, 0)
""",
}


@pytest.mark.parametrize("program", MEMORY_OUTSIDE.values(), ids=MEMORY_OUTSIDE)
def test_memory_cannot_be_held_outside_a_process(program: str) -> None:
    assert "[Errno 38]" in error_of(program)


def test_newer_and_foreign_calls_do_not_exist() -> None:
    """io_uring (425 to 427), clone3 (435), everything after 440, and getpid of x32."""
    numbers = [425, 426, 427, 435, *range(440, 600), 0x40000000 + 39]
    found = run_program(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"print({{(libc.syscall(number, 0, 0, 0, 0, 0, 0), ctypes.get_errno()) for number in {numbers}}})"
    )
    assert found.output == "{(-1, 38)}\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86")
def test_calls_of_a_32_bit_program_do_not_exist() -> None:
    getpid = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000" "cd80" "c3"))  # mov eax, 20; int 0x80; ret
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())
"""
    assert run_program(getpid).output == "-38\n"


WHAT_PROGRAMS_DO = {
    "threads": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(lambda x: x * x, range(10))))  # 285
""",
    "processes": """
import os, subprocess, sys
child = "import sys; print(int(sys.stdin.read()) + 1)"
done = subprocess.run([sys.executable, "-I", "-S", "-c", child], input="284", capture_output=True, text=True, timeout=9)
os.waitpid(os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-I", "-S", "-c", ""]), 0)
print(done.stdout.strip() or done.stderr)
""",
    "multiprocessing": """
import multiprocessing
def square(numbers, pipe): pipe.send(sum(x * x for x in numbers))
context = multiprocessing.get_context("fork")
ours, theirs = context.Pipe()
child = context.Process(target=square, args=(range(10), theirs)); child.start()
print(ours.recv()); child.join()
""",
    "asyncio": """
import asyncio
async def slow(x): await asyncio.sleep(0.001); return await asyncio.to_thread(lambda: x * x)
async def main():
    process = await asyncio.create_subprocess_exec("/bin/true")
    assert await process.wait() == 0
    return sum(await asyncio.gather(*map(slow, range(10))))
print(asyncio.run(main()))
""",
    "files": """
import glob, json, os, pathlib, pickle, shutil, sqlite3, tempfile, zipfile
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "a", "b.json"); path.parent.mkdir(); path.write_text(json.dumps(list(range(10))))
    shutil.copytree(path.parent, f"{folder}/c"); shutil.make_archive(f"{folder}/d", "gztar", folder, "c")
    zipfile.ZipFile(f"{folder}/e.zip", "w").write(path)
    os.rename(f"{folder}/c/b.json", f"{folder}/f"); os.symlink(f"{folder}/f", f"{folder}/g"); os.mkfifo(f"{folder}/h")
    pickle.dump(json.load(open(f"{folder}/g")), open(f"{folder}/i", "wb")); assert len(glob.glob(f"{folder}/*")) == 8
    db = sqlite3.connect(f"{folder}/j"); db.execute("CREATE TABLE t (x)")
    with db: db.executemany("INSERT INTO t VALUES (?)", [[x] for x in pickle.load(open(f"{folder}/i", "rb"))])
    print(db.execute("SELECT sum(x * x) FROM t").fetchone()[0])
""",
    "time and signals": """
import datetime, random, secrets, select, selectors, signal, time, uuid
signal.signal(signal.SIGALRM, lambda *_: print(285)); signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()
uuid.uuid4(), secrets.token_hex(), random.random(), datetime.datetime.now(), time.sleep(0.001), select.poll().poll(1)
selectors.DefaultSelector().select(0.001)
""",
    "numbers": """
import array, collections, decimal, fractions, functools, heapq, itertools, math, mmap, re, statistics, zlib
assert fractions.Fraction(1, 3) + fractions.Fraction(1, 6) == fractions.Fraction(1, 2) and mmap.mmap(-1, 4096)
print(math.isqrt(81_225) + 0 * int(decimal.Decimal(2).sqrt()))
""",
}


@pytest.mark.parametrize("program", WHAT_PROGRAMS_DO.values(), ids=WHAT_PROGRAMS_DO)
def test_what_programs_do_works(program: str) -> None:
    ran = run_program(program)
    assert (ran.output, ran.status) == ("285\n", 0), ran


@pytest.mark.parametrize("place", ["/usr/x", "/x", "/etc/x", "/dev/shm/x", "/dev/x", "/program.py"])
def test_nothing_outside_can_be_written(place: str) -> None:
    assert "Error" in error_of(f"open({place!r}, 'w').write('x')")
    assert not Path(place).exists() or place == "/dev/shm/x"


def test_home_and_secrets_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token")
    monkeypatch.setenv("MY_TOKEN", "hush")
    places = [str(secret), str(Path.home()), os.getcwd(), "/etc/passwd", "/proc/1/environ", "/sys", "/var"]
    looked = run_program(f"import os\nprint([p for p in {places} if os.path.exists(p)])\nprint(dict(os.environ))")
    first, second = looked.output.splitlines()
    assert first == "[]"
    assert "hush" not in second
    assert "MY_TOKEN" not in second
    assert run_program("import os; print(os.listdir('/tmp'))").output == "[]\n"


def test_what_is_written_in_tmp_is_gone_afterwards() -> None:
    assert run_program("open('note', 'w').write('x'); print(open('/tmp/note').read())").output == "x\n"
    assert run_program("import os; print(os.path.exists('/tmp/note'))").output == "False\n"


def test_a_fork_bomb_runs_out_of_processes() -> None:
    bomb = """
import os, time
count = 0
try:
    while count < 500:
        if os.fork() == 0:
            time.sleep(100)
        count += 1
except OSError as error:
    print(count < 8, type(error).__name__)
"""
    assert run_program(bomb, limits=ProgramLimits(processes=8)).output == "True BlockingIOError\n"
    exploding = run_program(
        "import os\nfor _ in range(12):\n    os.fork()\nwhile True: pass", limits=ProgramLimits(seconds=0.5)
    )
    assert exploding.status != 0


def test_memory_files_and_time_run_out() -> None:
    assert error_of("x = bytearray(1 << 40)") == "MemoryError"
    assert error_of("x = []\nwhile True: x.append(bytearray(1 << 20))") == "MemoryError"
    assert "File too large" in error_of("open('/tmp/a', 'wb').write(b'x' * (17 << 20))")
    many = "for i in range(40): open(f'/tmp/{i}', 'wb').write(b'x' * (1 << 20))"
    assert "No space left" in error_of(many)
    assert "Too many open files" in error_of("files = [open('/program.py') for _ in range(1000)]")
    for forever in ("import time; time.sleep(1000)", "while True: pass"):
        ran = run_program(forever, limits=ProgramLimits(seconds=0.5))
        assert (ran.status, ran.limit) == (None, "time")


def test_output_is_cut_and_its_program_ended() -> None:
    ran = run_program("while True: print('x' * 1000)")
    assert (ran.status, ran.limit, len(ran.output)) == (None, "output", 64 << 10)
    shouted = run_program("import sys\nwhile True: print('x' * 1000, file=sys.stderr)")
    assert (shouted.limit, len(shouted.error)) == ("output", 64 << 10)


def test_no_child_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    marker = f"# sandbox of test {os.getpid()}"  # in the command line of every process of the sandbox
    monkeypatch.setattr(sandbox, "RUNNER", f"{marker}\n{sandbox.RUNNER}")
    leaving = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1); os.close(2)
        time.sleep(1000)
    os._exit(0)
os.wait()
print('left')
"""
    assert run_program(leaving).output == "left\n"
    waiting = leaving.replace("os.wait()", "time.sleep(1000)")
    assert run_program(waiting, limits=ProgramLimits(seconds=0.5)).limit == "time"
    deadline = time.monotonic() + 60  # the kernel takes a moment
    while any(marker.encode() in read(path) for path in Path("/proc").glob("[0-9]*/cmdline")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_no_new_namespaces_and_no_rights() -> None:
    assert run_program("import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))").output == "-1\n"
    assert run_program("import ctypes; print(ctypes.CDLL(None).mount(0, b'/tmp', b'tmpfs', 0, 0))").output == "-1\n"
    raised = "import resource as r; r.setrlimit(r.RLIMIT_NPROC, (100, 100))"
    assert error_of(raised).startswith("ValueError: not allowed to raise maximum limit")


def test_what_could_not_start_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    imitated = run_program("import sys; sys.exit('bwrap: out of luck')")
    assert (imitated.status, imitated.error) == (1, "bwrap: out of luck\n")
    *command, python = sandbox._bubble()
    monkeypatch.setattr(sandbox, "_bubble", lambda: (*command, "--ro-bind", "/nowhere", "/nowhere", python))
    with pytest.raises(OSError, match="could not start the program: bwrap: Can't find source path /nowhere"):
        run_program("print(1)")

    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", full)
    with pytest.raises(OSError, match=r"bubblewrap could not be started: .*Resource temporarily unavailable") as caught:
        run_program("print(1)")
    assert not isinstance(caught.value, BlockingIOError), "a reward's own, which would be a crash of the completion"
    assert caught.value.errno is None


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    sandbox._bubble.cache_clear()
    try:
        with pytest.raises(GrpoError, match=r"needs bubblewrap .bwrap. .*apt install bubblewrap"):
            Code()
        with pytest.raises(GrpoError, match="bubblewrap"):
            run_program("print(1)")
    finally:
        sandbox._bubble.cache_clear()


def test_a_bubblewrap_that_cannot_work_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    for path in (fake, tmp_path, *tmp_path.parents[:-2]):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sandbox._bubble.cache_clear()
    try:
        with pytest.raises(GrpoError, match=r"\(bwrap: No permissions to create new namespace\).*user namespaces"):
            Code()
    finally:
        sandbox._bubble.cache_clear()


# The task


def test_every_gold_passes_and_nothing_else_does() -> None:
    task = Code()
    drawn = {problem.id.rpartition("/")[2]: problem for problem in task.draw(0, 200, seed=1)}
    heldout = {problem.id.rpartition("/")[2]: problem for problem in task.heldout()}
    assert (len(drawn), len(heldout)) == (15, 5)
    assert not drawn.keys() & heldout.keys()
    problems = [*drawn.values(), *heldout.values()]
    golds = [problem.answer for problem in problems]

    def rewards(texts: list[str]) -> list[float | None]:
        with Scorer(task) as scorer:
            return [done.reward for done in scorer.score_texts(zip(problems, texts, strict=True))]

    assert rewards(golds) == [1.0] * 20
    assert rewards([f"Here:\n```python\n{gold}```\nDone." for gold in golds]) == [1.0] * 20
    # Another problem's gold, a program that does nothing, words: no test set lets them pass.
    assert rewards(golds[1:] + golds[:1]) == [0.0] * 20
    assert rewards(["pass"] * 20) == [0.0] * 20
    assert rewards(["I would rather not."] * 20) == [0.0] * 20


def test_draws_are_keyed_and_prompts_recognised() -> None:
    task = Code()
    assert task.draw(3, 8, seed=1) == task.draw(3, 8, seed=1) != task.draw(4, 8, seed=1)
    problem = task.heldout()[0]
    known = task.recognise(problem.prompt)
    assert known is not None
    assert (known.answer, known.columns) == (problem.answer, problem.columns)
    assert task.recognise("Write something.") is None


def test_a_program_cannot_talk_its_way_through() -> None:
    tests = [[[2], 4], [[3], 9]]
    assert passes_calls("def f(x):\n    print('noise')\n    return x * x", "f", tests)
    assert not passes_calls("print('[4, 9]')\nimport sys\nsys.exit(0)", "f", tests)
    assert not passes_calls("import os\nos._exit(0)", "f", tests)
    assert not passes_calls("def f(x): return 4", "f", tests)
    assert not passes_calls("def f(x): return float(x * x)", "f", tests)
    assert not passes_runs("print('passed')", [["", "4\n"]])
    assert passes_runs("print('4 ')", [["", "4\n"]])
    # Right output, but it failed after all.
    assert not passes_runs("print(4)\nraise SystemExit(1)", [["", "4\n"]])


def test_which_block_is_the_program() -> None:
    assert program_in("a = 1") == "a = 1"
    assert program_in("```py\na\n```\n```python\nb\n```") == "b\n"
    assert program_in("```\nunclosed") == "```\nunclosed"
