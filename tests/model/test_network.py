"""Models and datasets of the Hugging Face hub on a machine that cannot reach it."""

from __future__ import annotations

import socket
import time
from typing import Any, NoReturn

import datasets
import pytest
from huggingface_hub import constants

from grpo.errors import GrpoError
from grpo.model.hub import network
from grpo.model.load import load_policy
from grpo.tasks.readers import read_rows


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No host has an address, and whoever waits for one fails the test."""

    def no_address(*_: Any, **__: Any) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def refuse(seconds: float) -> NoReturn:
        raise AssertionError(f"waited {seconds} s")

    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(network, "SET_OFFLINE", False)
    monkeypatch.setattr(network, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    monkeypatch.setattr(time, "sleep", refuse)


@pytest.mark.usefixtures("unreachable")
def test_without_a_network_nobody_waits_for_the_hub() -> None:
    with pytest.raises(GrpoError, match=r"^field data: cannot load the dataset owner/name: Couldn't reach 'owner"):
        read_rows("owner/name")
    with pytest.raises(GrpoError, match=r"^field model: cannot load 'owner/name': We couldn't connect to 'https://"):
        load_policy("owner/name")


@pytest.mark.usefixtures("unreachable")
def test_every_access_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network may come back, or be reached through a proxy that knows the address."""
    network.skip_unreachable_hub()
    assert constants.HF_HUB_OFFLINE
    with monkeypatch.context() as proxy:
        proxy.setattr(network, "getproxies", lambda: {"https": "http://proxy:3128"})
        network.skip_unreachable_hub()
        assert not constants.HF_HUB_OFFLINE
    hosts: list[str] = []
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.example")
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, _: [hosts.append(host)])
    network.skip_unreachable_hub()
    assert (hosts, constants.HF_HUB_OFFLINE) == (["hub.example"], False)
    monkeypatch.setattr(network, "SET_OFFLINE", True)
    network.skip_unreachable_hub()
    assert constants.HF_HUB_OFFLINE, "as the environment says"
