"""The filter of system calls: run by a BPF interpreter for both machines, its numbers compared with the kernel's."""

from __future__ import annotations

import re
import socket
import struct
from pathlib import Path

import pytest

from grpo.tasks.checkers.seccomp import CLONE, MACHINES, SOCKET_CALLS, allowed_calls, syscall_filter

ALLOW, NOT_THERE, NO_FAMILY = 0x7FFF0000, 0x00050000 + 38, 0x00050000 + 97
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", {}),
    "aarch64": ("/usr/include/asm-generic/unistd.h", {"newfstatat": "fstatat"}),
}


def action(program: bytes, arch: int, number: int, argument: int = 0) -> int:
    """What the kernel would do with a call: an interpreter of the four operations used."""
    data = struct.pack("=iIQ6Q", number, arch, 0, argument, *[0] * 5)
    code, at, loaded = list(struct.iter_unpack("HBBI", program)), 0, 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            [loaded] = struct.unpack_from("=I", data, value)
        elif operation == 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
            at += if_true if loaded == value else if_false
        elif operation == 0x45:  # BPF_JMP | BPF_JSET | BPF_K
            at += if_true if loaded & value else if_false
        else:
            assert operation == 0x06, "BPF_RET | BPF_K"
            return value


@pytest.mark.parametrize("machine", MACHINES)
def test_only_listed_calls_are_allowed(machine: str) -> None:
    program, arch, column = syscall_filter(machine), MACHINES[machine], list(MACHINES).index(machine)
    listed = {numbers[column] for numbers in allowed_calls().values()} - {-1}
    checked = {CLONE[column], *(numbers[column] for numbers in SOCKET_CALLS.values())}
    assert not listed & checked
    assert {number for number in range(1024) if action(program, arch, number) == ALLOW} == listed | {CLONE[column]}
    for other in set(MACHINES.values()) - {arch} | {0x40000003, 0}:  # the first is AUDIT_ARCH_I386
        assert {action(program, other, number) for number in range(1024)} == {NOT_THERE}
    assert {action(program, arch, 0x40000000 | number) for number in range(1024)} == {NOT_THERE}, "x32"


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide_for_sockets_and_new_processes(machine: str) -> None:
    program, arch, column = syscall_filter(machine), MACHINES[machine], list(MACHINES).index(machine)
    for numbers in SOCKET_CALLS.values():
        for family in range(64):
            expected = ALLOW if family == socket.AF_UNIX else NO_FAMILY
            assert action(program, arch, numbers[column], family) == expected
            assert action(program, arch, numbers[column], family | 1 << 40) == expected, "the kernel reads 32 bits"
    thread = 0x3D0F00  # the flags of pthread_create
    assert action(program, arch, CLONE[column], thread) == ALLOW
    for bit in (17, *range(25, 31)):  # CLONE_NEWNS, CLONE_NEWCGROUP … CLONE_NEWNET
        assert action(program, arch, CLONE[column], thread | 1 << bit) == NOT_THERE


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_the_kernels(machine: str) -> None:
    file, renamed = HEADERS[machine]
    if not Path(file).exists():
        pytest.skip("no kernel headers here")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(file).read_text())
    kernel, column = {name: int(number) for name, number in found}, list(MACHINES).index(machine)
    for name, numbers in {**allowed_calls(), **SOCKET_CALLS, "clone": CLONE}.items():
        assert numbers[column] == kernel.get(renamed.get(name, name), -1), name
