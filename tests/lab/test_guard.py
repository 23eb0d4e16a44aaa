"""Who is answered, and what a page may do."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from grpo.cli.main import main
from grpo.cli.terminal import group
from grpo.lab.server import STATIC, make_app

HOME = "http://127.0.0.1:8765"


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    return TestClient(make_app(tmp_path), base_url=HOME)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "localhost.evil"])
def test_a_foreign_name_is_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/api/runs", "/static/js/app.js"):
        assert client.get(path, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1", "[::1]:8765"])
def test_our_own_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
    ids=str,
)
def test_another_sites_page_is_refused(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/api/runs", headers=headers).status_code == 403
    assert client.get("/api/runs", headers={"Origin": HOME}).status_code == 200


def test_nothing_can_be_sent(client: TestClient) -> None:
    """But for trials: test_trials.py."""
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/api/runs").status_code == 403
    for method in ("PUT", "DELETE", "PATCH"):
        assert client.request(method, "/api/trials").status_code == 403


@pytest.mark.parametrize(
    "run", ["../../etc", "..%2f..%2fetc%2fpasswd", "%2e%2e", "..", "%2e", "~", "~..", "a/../b", "run%00", "C:%5Cruns"]
)
def test_ids_are_names_of_the_listing_and_no_paths(tmp_path: Path, client: TestClient, run: str) -> None:
    (tmp_path / "run.db").write_bytes(b"")  # what .. or . would lead to
    for path in (f"/api/runs/{run}", f"/api/runs/{run}/series", f"/api/runs/{run}/events"):
        assert client.get(path).status_code == 404


def test_a_link_to_elsewhere_is_not_listed(tmp_path: Path, client: TestClient) -> None:
    (tmp_path / "link").symlink_to(STATIC)
    assert client.get("/api/runs/link").status_code == 404


def test_static_files_stay_in_their_folder(client: TestClient) -> None:
    assert client.get("/static/js/app.js").status_code == 200
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py"):
        assert client.get(path).status_code == 404


def test_the_policy_forbids_everything_but_our_own(client: TestClient) -> None:
    for path in ("/", "/runs/x/groups", "/api/runs", "/static/js/app.js"):
        policy = client.get(path).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert not re.search(r"https?:|\*", policy)


def test_beyond_this_machine_a_token_is_needed(tmp_path: Path) -> None:
    client = TestClient(
        make_app(tmp_path, address="0.0.0.0", token="s3cret"), base_url="http://192.0.2.7:8765", follow_redirects=False
    )
    assert client.get("/api/runs").status_code == 401
    assert client.get("/?token=wrong").status_code == 401
    welcome = client.get("/runs?token=s3cret")
    assert (welcome.status_code, welcome.headers["Location"]) == (303, "/runs")
    assert "HttpOnly" in welcome.headers["Set-Cookie"]
    assert "SameSite=strict" in welcome.headers["Set-Cookie"]
    assert client.get("/api/runs").status_code == 200, "the cookie is enough from now on"
    assert client.get("/api/runs", headers={"Host": "evil.example"}).status_code == 403


def test_the_command_refuses_a_public_address_without_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "--host", "0.0.0.0", "--no-open"]) == 2
    assert "--token" in capsys.readouterr().err


def test_the_command_without_the_extra_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "grpo.lab.server")
    assert main(["lab", "--no-open"]) == 2
    assert 'pip install "grpo-lab[lab]"' in capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpo", "lab", "--port", "0", "--no-open", "--runs", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lab:
        try:
            assert lab.stdout is not None
            place = re.search(r"http://127\.0\.0\.1:\d+/", lab.stdout.readline())
            assert place is not None
            with urllib.request.urlopen(f"{place[0]}api/runs") as answer:
                assert [run["id"] for run in json.load(answer)["runs"]] == ["~tiny-arithmetic"]
            lab.send_signal(signal.SIGINT)
            assert lab.wait() in (0, 130)  # 0 where whoever started the tests has interrupts ignored
        finally:
            lab.kill()


def test_no_file_of_ours_names_another_host() -> None:
    """Vendored files hold addresses in comments and namespaces; the browser tests see that none is asked."""
    for path in (*STATIC.glob("*.html"), *STATIC.glob("js/**/*.js"), *STATIC.glob("css/*.css")):
        assert not re.search(r"https?://|//\w+\.\w+/", path.read_text().replace("http://www.w3.org", "")), path


def test_scripts_make_no_markup() -> None:
    for path in STATIC.glob("js/**/*.js"):
        assert not re.search(
            "innerHTML|outerHTML|insertAdjacentHTML|document.write|eval\\(|new Function", path.read_text()
        )
        assert "dangerouslySetInnerHTML" not in path.read_text()


def test_the_advantage_scale_is_the_terminals() -> None:
    style = (STATIC / "css/system.css").read_text()
    for name, colour in (("above", group.ABOVE), ("level", group.LEVEL), ("below", group.BELOW)):
        assert f"--{name}: #{''.join(f'{part:02x}' for part in colour)};" in style
