"""The process between `cb.start` and its node: it runs the node, and ends it with the interpreter that started it.

It runs as a file, apart from the package. Its standard input is a pipe that the interpreter holds open: the end of the
pipe is the end of that interpreter, however it ends. No signal to a parent's process or terminal group comes here.
"""

import os
import subprocess
import sys
import threading


def main() -> None:
    with subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL) as node:
        threading.Thread(target=_end_with_pipe, args=(node,), daemon=True).start()
        code = node.wait()
    # The thread still reads.
    os._exit(code if code >= 0 else 128 - code)


def _end_with_pipe(node: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 64):
        pass
    # The node ends its calls first, within its own limit.
    node.terminate()


if __name__ == "__main__":
    main()
