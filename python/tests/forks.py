"""Services for the tests of the fork server."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time

import numpy as np

import callboard as cb

KIND = os.environ.get("TEST_IMPORT", "")
# Makes NumPy's generator.
np.random.rand()
STATE = {"imported by": os.getpid()}

print("imported")
print("no end of line", end="")

if KIND == "thread":
    threading.Thread(target=time.sleep, args=(1000,), name="poller", daemon=True).start()
elif KIND == "exit":
    sys.exit(3)
elif KIND == "cuda":
    cuda = type(sys)("torch.cuda")
    cuda.is_initialized = lambda: True  # type: ignore[attr-defined]
    sys.modules["torch"] = type(sys)("torch")
    sys.modules["torch"].cuda = cuda  # type: ignore[attr-defined]
elif KIND == "signal":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
elif KIND == "trial":

    def refused() -> int:
        raise OSError("no more processes")

    # A thread that a library might end before a fork.
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    threading.enumerate = lambda: [threading.main_thread()]
    os.fork = refused
elif KIND == "debug":
    logging.getLogger().setLevel("DEBUG")
elif KIND == "numpy":
    np.ones((300, 300)) @ np.ones((300, 300))


@cb.service
class Own:
    def setup(self, device: str) -> None:
        print(f"set up on {device}")
        self.by = os.getpid()

    def predict(self, what: str) -> list[float]:
        print(f"asked for {what}")
        logging.debug("a detail")
        if what == "random":
            return [random.random(), float(np.random.rand())]
        if what == "matrix":
            return [float((np.ones((300, 300)) @ np.ones((300, 300)))[0, 0])]
        return [STATE["imported by"], self.by, os.getpid(), os.getpgid(0)]


@cb.service(share_setup=True)
class Shared(Own):
    pass


@cb.service(share_setup=True)
class Fails:
    def setup(self) -> None:
        raise FileNotFoundError("model.bin")

    def predict(self, what: str) -> str:
        return what


@cb.service(share_setup=True)
class AsyncSetup:
    async def setup(self) -> None: ...

    def predict(self, what: str) -> str:
        return what


@cb.service(share_setup=True)
class OfReplica:
    def setup(self, replica: int) -> None: ...

    def predict(self, what: str) -> str:
        return what


@cb.service(share_setup=True)
class Threads(Own):
    def setup(self) -> None:
        threading.Thread(target=time.sleep, args=(1000,), name="loader", daemon=True).start()
