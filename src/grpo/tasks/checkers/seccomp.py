"""The system calls of a program in the sandbox: a seccomp filter for bubblewrap, as classic BPF.

A call that is not listed fails with ENOSYS, as on an older kernel, so that libraries use another one. Not listed are
calls that hold memory outside a process (memfd_create, System V shared memory and messages), namespaces, mounts,
ptrace, io_uring, bpf, keys, and clone3, whose flags a filter cannot read. Sockets of a family other than AF_UNIX fail
with EAFNOSUPPORT.
"""

from __future__ import annotations

import errno
import socket
import struct

ALLOWED = """
# memory
brk 12 214, madvise 28 233, membarrier 324 283, mmap 9 222, mprotect 10 226, mremap 25 216, msync 26 227,
munmap 11 215
# files
access 21 -, chdir 80 49, chmod 90 -, chown 92 -, close 3 57, close_range 436 436, copy_file_range 326 285,
creat 85 -, dup 32 23, dup2 33 -, dup3 292 24, faccessat 269 48, faccessat2 439 439, fadvise64 221 223,
fallocate 285 47, fchdir 81 50, fchmod 91 52, fchmodat 268 53, fchown 93 55, fchownat 260 54, fcntl 72 25,
fdatasync 75 83, fgetxattr 193 10, flistxattr 196 13, flock 73 32, fstat 5 80, fstatfs 138 44, fsync 74 82,
ftruncate 77 46, getcwd 79 17, getdents 78 -, getdents64 217 61, getxattr 191 8, ioctl 16 29, lchown 94 -,
lgetxattr 192 9, link 86 -, linkat 265 37, listxattr 194 11, llistxattr 195 12, lseek 8 62, lstat 6 -, mkdir 83 -,
mkdirat 258 34, mknod 133 -, mknodat 259 33, newfstatat 262 79, open 2 -, openat 257 56, pipe 22 -, pipe2 293 59,
pread64 17 67, preadv 295 69, preadv2 327 286, pwrite64 18 68, pwritev 296 70, pwritev2 328 287, read 0 63,
readlink 89 -, readlinkat 267 78, readv 19 65, rename 82 -, renameat 264 38, renameat2 316 276, rmdir 84 -,
sendfile 40 71, stat 4 -, statfs 137 43, statx 332 291, symlink 88 -, symlinkat 266 36, truncate 76 45,
umask 95 166, unlink 87 -, unlinkat 263 35, utime 132 -, utimensat 280 88, utimes 235 -, write 1 64, writev 20 66
# waiting and time
alarm 37 -, clock_getres 229 114, clock_gettime 228 113, clock_nanosleep 230 115, epoll_create1 291 20,
epoll_ctl 233 21, epoll_pwait 281 22, epoll_wait 232 -, eventfd2 290 19, getitimer 36 102, gettimeofday 96 169,
nanosleep 35 101, pause 34 -, poll 7 -, ppoll 271 73, pselect6 270 72, select 23 -, setitimer 38 103, time 201 -,
timerfd_create 283 85, timerfd_gettime 287 87, timerfd_settime 286 86, times 100 153
# processes and signals
arch_prctl 158 -, execve 59 221, exit 60 93, exit_group 231 94, fork 57 -, futex 202 98, get_robust_list 274 100,
getcpu 309 168, getegid 108 177, geteuid 107 175, getgid 104 176, getgroups 115 158, getpgid 121 155, getpgrp 111 -,
getpid 39 172, getppid 110 173, getpriority 140 141, getrandom 318 278, getresgid 120 150, getresuid 118 148,
getrlimit 97 163, getrusage 98 165, getsid 124 156, gettid 186 178, getuid 102 174, kill 62 129, pidfd_open 434 434,
pidfd_send_signal 424 424, prctl 157 167, prlimit64 302 261, restart_syscall 219 128, rseq 334 293,
rt_sigaction 13 134, rt_sigpending 127 136, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigsuspend 130 133,
rt_sigtimedwait 128 137, sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_getaffinity 204 123,
sched_getparam 143 121, sched_getscheduler 145 120, sched_setaffinity 203 122, sched_yield 24 124,
set_robust_list 273 99, set_tid_address 218 96, setpgid 109 154, setpriority 141 140, setrlimit 160 164,
setsid 112 157, sigaltstack 131 132, sysinfo 99 179, tgkill 234 131, tkill 200 130, uname 63 160, vfork 58 -,
wait4 61 260, waitid 247 95
# sockets
accept 43 202, accept4 288 242, bind 49 200, connect 42 203, getpeername 52 205, getsockname 51 204,
getsockopt 55 209, listen 50 201, recvfrom 45 207, recvmsg 47 212, sendmsg 46 211, sendto 44 206, setsockopt 54 208,
shutdown 48 210
"""
"""Name, number on x86_64, number on aarch64; - where the machine does not have it."""
SOCKET_CALLS = {"socket": (41, 198), "socketpair": (53, 199)}
CLONE = (56, 220)
NEW_NAMESPACES = 0x7E020000
"""Flags of clone: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH by `platform.machine()`. A call by the rules of another machine, such as int 0x80, fails with ENOSYS; so
does one of x32, whose numbers are higher."""

LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
"""Operations of BPF: load 32 bits of the call's data; compare; test bits; return an action."""
NUMBER, ARCH, FIRST_ARGUMENT = 0, 4, 16
"""Offsets in struct seccomp_data; of an argument, the lower 32 bits."""
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


def syscall_filter(machine: str) -> bytes:
    """The filter for one of the MACHINES: an array of struct sock_filter."""
    column = list(MACHINES).index(machine)
    code = [
        _operation(LOAD, ARCH),
        _operation(EQUAL, MACHINES[machine], 1, 0),
        _operation(RETURN, ERRNO | errno.ENOSYS),
        _operation(LOAD, NUMBER),
    ]
    for numbers in allowed_calls().values():
        if numbers[column] >= 0:
            code += [_operation(EQUAL, numbers[column], 0, 1), _operation(RETURN, ALLOW)]
    for numbers in SOCKET_CALLS.values():
        code += [
            _operation(EQUAL, numbers[column], 0, 4),
            _operation(LOAD, FIRST_ARGUMENT),
            _operation(EQUAL, socket.AF_UNIX, 0, 1),
            _operation(RETURN, ALLOW),
            _operation(RETURN, ERRNO | errno.EAFNOSUPPORT),
        ]
    code += [
        _operation(EQUAL, CLONE[column], 0, 3),
        _operation(LOAD, FIRST_ARGUMENT),
        _operation(ANY_BIT, NEW_NAMESPACES, 1, 0),
        _operation(RETURN, ALLOW),
        _operation(RETURN, ERRNO | errno.ENOSYS),
    ]
    return b"".join(code)


def allowed_calls() -> dict[str, tuple[int, ...]]:
    """Calls that are allowed with any arguments, by name: their number on each machine, -1 where it has none."""
    entries = [entry.split() for line in ALLOWED.splitlines() if line[:1] != "#" for entry in line.split(",")]
    return {name: tuple(-1 if n == "-" else int(n) for n in numbers) for name, *numbers in filter(None, entries)}


def _operation(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """struct sock_filter; `if_true` and `if_false`: operations to skip."""
    return struct.pack("HBBI", code, if_true, if_false, value)
