"""A service whose replicas have cores of their own, from the import on."""

from __future__ import annotations

import os
import time

import callboard as cb

AT_IMPORT = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@cb.service(replicas=2, affinity=[[0, 1], 1], env=[{"NAME": "a"}, {"NAME": "b"}])
class Cores:
    def predict(self, seconds: float) -> tuple[list[int], list[int], str]:
        time.sleep(seconds)
        return AT_IMPORT, sorted(os.sched_getaffinity(0)), os.environ["NAME"]
