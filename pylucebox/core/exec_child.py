"""Become a program that dies with its launcher: `python -I exec_child.py LAUNCHER_PID PROGRAM ARG...`.

Linux kills this process when the thread that started it is gone, whatever ended the launcher (kill -9
included); the setting survives exec. Elsewhere the program merely replaces this process. Runs as a script,
so it imports nothing of ours.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h
EXIT_NOT_STARTED = 127


def main() -> int:
    launcher_pid, argv = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            print(f"prctl: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
            return EXIT_NOT_STARTED
        if os.getppid() != launcher_pid:  # the launcher died before the line above took effect
            return EXIT_NOT_STARTED
    try:
        os.execv(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
    return EXIT_NOT_STARTED


if __name__ == "__main__":
    sys.exit(main())
