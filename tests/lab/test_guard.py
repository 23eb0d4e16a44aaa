"""Who is answered, and what a page may do."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from grpo.cli.main import main
from grpo.cli.terminal import group
from grpo.lab.catalogue import RECORDINGS
from grpo.lab.server import STATIC, make_app, show_in_browser
from helpers.http_requests import HttpRequest, faults, handwritten, send_all

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
        {"Origin": "http://["},
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


def welcome(client: TestClient, token: str, path: str = "/runs") -> httpx.Response:
    return client.get(path, params={"token": token})


@pytest.mark.parametrize("token", ["s3cret", 'with space; and, "quotes"', "Geheimnis €&=?#"])
def test_a_token_is_needed_once(tmp_path: Path, token: str) -> None:
    client = TestClient(make_app(tmp_path, token=token), base_url=HOME)
    for path in ("/", "/api/runs", "/api/runs/~tiny-arithmetic/events", "/static/js/app.js", "/nowhere"):
        assert client.get(path).status_code == client.head(path).status_code == 401
        assert "tiny" not in client.get(path).text
        assert "default-src 'none'" in client.get(path).headers["Content-Security-Policy"]
    assert "open the address that grpo lab printed" in client.get("/api/runs").json()["error"], "for an open page"
    assert client.options("/api/runs").status_code == 403
    assert welcome(client, "wrong").status_code == 401
    assert not client.cookies
    answer = welcome(client, token)
    assert answer.status_code == 200
    assert 'content="0; url=/runs"' in answer.text, "the page goes on without the token"
    assert token not in answer.text
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["Set-Cookie"].split("; "))
    for path in ("/", "/api/runs", "/api/runs/~tiny-arithmetic/events", "/static/js/app.js"):
        assert client.get(path).status_code == 200, "the cookie is enough from now on"
    assert client.get("/api/runs", headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("token", ["s3cret", 'with space; and, "quotes"', "Geheimnis €&=?#"])
def test_a_program_gets_its_answer_by_the_token_in_the_address_or_a_header(tmp_path: Path, token: str) -> None:
    client = TestClient(make_app(tmp_path, token=token), base_url=HOME)
    path = "/api/runs/~tiny-arithmetic/series"
    open_lab = TestClient(make_app(tmp_path), base_url=HOME)
    expected = open_lab.get(path, params={"names": "kl", "points": 8}).json()
    by_address = client.get(path, params={"names": "kl", "token": token, "points": 8})
    by_header = client.get(path, params={"names": "kl", "points": 8}, headers=bearer(token))
    assert by_address.json() == by_header.json() == expected
    assert len(expected["series"]["kl"]["mean"]) == 8
    assert not client.cookies
    assert client.get("/api/nothing", params={"token": token}).json() == {"error": "no such address"}
    for refused in (
        client.get(path, params={"token": "wrong"}),
        *(client.get(path, headers=bearer(offered)) for offered in ("wrong", "", f"{token}x", "\xff")),
        client.get(path, headers={"Authorization": b"Basic " + token.encode()}),
        client.get(path, headers={"Authorization": token.encode()}),
    ):
        assert refused.status_code == 401
        assert "token missing or wrong" in refused.json()["error"]
    elsewhere = client.get(path, params={"token": token}, headers=bearer(token) | {"Host": "evil.example"})
    assert elsewhere.status_code == 403
    assert client.post("/api/trials", params={"token": token}, headers=bearer(token)).status_code == 403


def bearer(token: str) -> dict[str, bytes]:
    return {"Authorization": b"Bearer " + token.encode()}


def test_other_parameters_stay_in_the_address_and_no_other_host_gets_in(tmp_path: Path) -> None:
    client = TestClient(make_app(tmp_path, token="s3cret"), base_url=HOME)
    answer = client.get("/runs/x/tokens?step=5&token=2&token=s3cret&text=%3C%22%26")
    assert 'url=/runs/x/tokens?step=5&amp;token=2&amp;text=%3C%22%26"' in answer.text
    [(_, elsewhere)] = send_all(make_app(tmp_path, token="t"), [HttpRequest(b"//evil.example/%22%3E?token=t")])
    assert b'url=/evil.example/%22%3E"' in elsewhere.body


def test_each_port_has_its_cookie(tmp_path: Path) -> None:
    """A browser sends the cookies of 127.0.0.1 to all its ports."""
    jar = TestClient(make_app(tmp_path, token="one"), base_url="http://127.0.0.1:1111")
    welcome(jar, "one")
    other = TestClient(make_app(tmp_path, token="two"), base_url="http://127.0.0.1:2222", cookies=jar.cookies)
    assert other.get("/api/runs").status_code == 401
    welcome(other, "two")
    assert other.get("/api/runs").status_code == 200
    back = TestClient(make_app(tmp_path, token="one"), base_url="http://127.0.0.1:1111", cookies=other.cookies)
    assert back.get("/api/runs").status_code == 200


def test_cookies_of_other_programs_do_no_harm(tmp_path: Path) -> None:
    client = TestClient(make_app(tmp_path, token="s3cret"), base_url=HOME)
    name, _, rest = welcome(client, "s3cret").headers["Set-Cookie"].partition("=")
    ours = f"{name}={rest.partition(';')[0]}"
    for others in ("(x)=1; a,b=2", "_xsrf=2|1:0|10:1|4:x", "=", "path=/; $Version=1", 'broken="'):
        headers = {"Cookie": f"{others}; {ours}; {others}"}
        assert client.get("/api/runs", headers=headers).status_code == 200


def test_there_are_no_web_sockets(tmp_path: Path) -> None:
    client = TestClient(make_app(tmp_path), base_url=HOME)
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/runs"):
        pass


def test_bound_to_all_addresses_any_of_them_is_a_name(tmp_path: Path) -> None:
    client = TestClient(make_app(tmp_path, address="0.0.0.0", token="s3cret"), base_url="http://192.0.2.7:8765")
    assert client.get("/api/runs").status_code == 401
    welcome(client, "s3cret")
    assert client.get("/api/runs").status_code == 200


def test_hostile_requests_are_answered(client: TestClient, tmp_path: Path) -> None:
    """No status 500, no exception, and JSON where JSON is promised."""
    page = client.get("/learn")
    token = re.search(r'name="page-token" content="([^"]+)"', page.text)
    assert token is not None
    answers = send_all(client.app, handwritten(token[1]))
    assert faults(answers) == []
    assert len(answers) > 250
    codes = {request.target: answer.status for request, answer in answers}
    beyond = f"/api/runs/~tiny-arithmetic/steps/{2**63}/groups/{2**63}/tokens/{2**63}/{2**63}".encode()
    assert codes[beyond] == 404


def test_a_damaged_record_is_reported(tmp_path: Path) -> None:
    """Every page of the file but the first ones holds noise."""
    client = TestClient(make_app(tmp_path), base_url=HOME)
    (tmp_path / "mine").mkdir()
    record = bytearray((RECORDINGS / "tiny-arithmetic/run.db").read_bytes())
    record[40 * 4096 :] = random.Random(1).randbytes(len(record) - 40 * 4096)
    (tmp_path / "mine/run.db").write_bytes(record)
    for path in ("/runs/mine/completions", "/runs/mine/steps/5", "/compare?runs=mine", "/runs/mine/findings"):
        answer = client.get(f"/api{path}")
        assert answer.status_code == 503
        assert "cannot be read" in answer.json()["error"]
    assert client.get("/api/runs").status_code == 200


def test_a_folder_whose_name_is_not_text_is_not_listed(client: TestClient, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(folder)
    (Path(os.fsdecode(folder)) / "run.db").write_bytes(b"")
    assert [run["id"] for run in client.get("/api/runs").json()["runs"]] == ["~tiny-arithmetic"]


def test_the_command_refuses_a_public_address_without_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "--host", "0.0.0.0", "--token", "none", "--no-open"]) == 2
    assert "leave out --token none" in capsys.readouterr().err


def test_the_browser_opens_a_file_that_only_its_user_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    show_in_browser("http://127.0.0.1:1/?token=s3cret", tmp_path)
    [place] = opened
    assert "s3cret" not in place
    assert "url=http://127.0.0.1:1/?token=s3cret" in Path(place.removeprefix("file://")).read_text()


def test_the_command_without_the_extra_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for module in ("grpo.lab.server", "grpo.lab.connection"):
        monkeypatch.delitem(sys.modules, module)
    assert main(["lab", "--no-open"]) == 2
    assert 'pip install "grpo-lab[lab]"' in capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpo", "lab", "--port", "0", "--no-open", "--runs", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lab:
        try:
            assert lab.stdout is not None
            place = re.search(r"(http://127\.0\.0\.1:\d+/)\?token=[\w-]{32}", lab.stdout.readline())
            assert place is not None
            with httpx.Client() as browser:
                assert browser.get(f"{place[1]}api/runs").status_code == 401
                browser.get(place[0])
                found = browser.get(f"{place[1]}api/runs").json()["runs"]
            assert [run["id"] for run in found] == ["~tiny-arithmetic"]
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
