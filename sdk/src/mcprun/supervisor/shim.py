"""Becomes the command that follows, after asking the kernel to end it with its parent.

Run by path with `python -I -S`, so it may import nothing but the standard library. The arguments are the parent's process id
and the command. On kernels without PR_SET_PDEATHSIG the command runs all the same.
"""

import os
import sys


def main() -> None:
    """Runs the command."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes
        import signal

        set_parent_death_signal = 1  # PR_SET_PDEATHSIG in linux/prctl.h
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != int(parent):
            # The parent died before the kernel was asked.
            raise SystemExit(1)
    os.execv(command[0], command)  # noqa: S606  the supervisor's own child


if __name__ == "__main__":
    main()
