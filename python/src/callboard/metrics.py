"""Metrics of user code, which the page `/metrics` of its node shows: `callboard.metric`.

They are counted in this process. A worker sends what has changed to its node, once a second at most, and the node adds
up what its processes send. A process without a node, such as that of a test, keeps them.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar, overload

from callboard._elsewhere import did_you_mean

KINDS = ("counter", "gauge", "histogram")
# Seconds of calls, as prometheus_client has them.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

# The limits of a node, or less.
_MAX_METRICS = 200
_MAX_SERIES = 1000
_MAX_NAME_BYTES = 200
_MAX_HELP_BYTES = 500
_MAX_LABELS = 10
_MAX_BUCKETS = 50
_RESERVED = ("stage", "replica", "le")
_SEND_SECONDS = 1.0
# The most samples of a message: all together fit into a head.
_MAX_SENT = 500

Labels = tuple[tuple[str, str], ...]
Send = Callable[[list[dict[str, Any]]], None]
M = TypeVar("M", bound="_Metric")
log = logging.getLogger("callboard")


class _Series:
    """The change since the last message; of a gauge the value."""

    def __init__(self, buckets: int) -> None:
        self.value = 0.0
        self.counts = [0] * buckets


@dataclasses.dataclass
class _Family:
    name: str
    kind: str
    help: str
    buckets: tuple[float, ...]
    series: dict[Labels, _Series] = dataclasses.field(default_factory=dict)
    # Whether the log has that values of it are not counted.
    is_told: bool = False


class _Registry:
    """The metrics of this process."""

    def __init__(self) -> None:
        self.families: dict[str, _Family] = {}
        self._forget_thread()
        os.register_at_fork(after_in_child=self._forked)

    def _forget_thread(self) -> None:
        # A signal handler may count where a count is interrupted.
        self.lock = threading.RLock()
        self._changed: dict[tuple[str, Labels], None] = {}
        self._has_changed = threading.Event()
        self._send: Send | None = None
        self._thread: threading.Thread | None = None
        # Whether the log has that something was not sent.
        self._is_told = False

    def _forked(self) -> None:
        """The counts belong to the process that was forked; its gauges are those of both."""
        self._forget_thread()
        for family in self.families.values():
            if family.kind == "gauge":
                self._changed.update(((family.name, labels), None) for labels in family.series)
            else:
                family.series.clear()

    def connect(self, send: Send) -> None:
        """Sends what changes from now on, and what has changed before."""
        with self.lock:
            self._send = send
            if self._changed:
                self._wake()

    def update(self, family: _Family, labels: Labels, change: Callable[[_Series], object]) -> None:
        with self.lock:
            series = family.series.get(labels)
            if series is None:
                reason = self._refusal(family, labels)
                if reason is None:
                    series = family.series[labels] = _Series(len(family.buckets) + 1)
                elif family.is_told:
                    return
                family.is_told |= reason is not None
            if series is not None:
                change(series)
                if not self._changed and self._send is not None:
                    self._wake()
                self._changed[family.name, labels] = None
                return
        # Without the lock: the log has its own.
        log.error("the metric %s does not count some of its values: %s", family.name, reason)

    def _refusal(self, family: _Family, labels: Labels) -> str | None:
        for name, value in labels:
            try:
                _check_bytes(f"a value of the label {name}", value, _MAX_NAME_BYTES)
            except ValueError as error:
                return str(error)
        if sum(len(each.series) for each in self.families.values()) >= _MAX_SERIES:
            return f"the metrics of a process have at most {_MAX_SERIES} series, which is one for each set of labels"
        return None

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_on, name="callboard-metrics", daemon=True)
            self._thread.start()
        self._has_changed.set()

    def _send_on(self) -> None:
        while True:
            self._has_changed.wait()
            self._has_changed.clear()
            self.flush()
            time.sleep(_SEND_SECONDS)

    def flush(self) -> None:
        """Sends what has changed, in this thread. Never fails: the log says once that something was not sent."""
        try:
            self._flush()
        except Exception:
            if not self._is_told:
                self._is_told = True
                log.exception("some metrics were not sent to the node")

    def _flush(self) -> None:
        with self.lock:
            send, changed = self._send, list(self._changed)
            if send is None or not changed:
                return
            self._changed.clear()
            samples = [self._take(self.families[name], labels) for name, labels in changed]
        for start in range(0, len(samples), _MAX_SENT):
            send(samples[start : start + _MAX_SENT])

    def _take(self, family: _Family, labels: Labels) -> dict[str, Any]:
        series = family.series[labels]
        sample: dict[str, Any] = {"name": family.name, "help": family.help, "labels": labels}
        if family.kind == "gauge":
            return {**sample, "set": series.value}
        value, series.value = series.value, 0.0
        if family.kind == "counter":
            return {**sample, "add": value}
        counts, series.counts = series.counts, [0] * len(series.counts)
        return {**sample, "observed": {"bounds": family.buckets, "counts": counts, "sum": value}}

    def reset(self) -> None:
        """Begins again at zero, for a test."""
        with self.lock:
            self._changed.clear()
            for family in self.families.values():
                family.series.clear()

    def values(self) -> Iterator[tuple[str, float]]:
        """The samples of a process without a node, as the page would call them."""
        with self.lock:
            for family in self.families.values():
                for labels, series in family.series.items():
                    text = ",".join(f"{name}={_quoted(value)}" for name, value in labels)
                    place = f"{{{text}}}" if text else ""
                    if family.kind == "histogram":
                        yield f"{family.name}_count{place}", float(sum(series.counts))
                        yield f"{family.name}_sum{place}", series.value
                    else:
                        yield f"{family.name}{'_total' if family.kind == 'counter' else ''}{place}", series.value


REGISTRY = _Registry()


class _Metric:
    """A metric, or the series of it that has these labels."""

    def __init__(self, family: _Family, labels: Labels = ()) -> None:
        self._family = family
        self._labels = labels

    def labels(self: M, **labels: object) -> M:
        """The series of the metric with these labels, whose values become texts: `labels(model="x").inc()`.

        Raises `ValueError` for a name that a label cannot have, and for more than 10 labels.
        """
        return type(self)(self._family, self._with(labels))

    def _with(self, labels: dict[str, object]) -> Labels:
        if not labels:
            return self._labels
        for name in labels:
            if name in _RESERVED or name.startswith("__") or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{self._family.name}: a label cannot be called {name!r}")
            _check_bytes("the name of a label", name, _MAX_NAME_BYTES)
        found = {**dict(self._labels), **{name: str(value) for name, value in labels.items()}}
        if len(found) > _MAX_LABELS:
            raise ValueError(f"{self._family.name}: a series has at most {_MAX_LABELS} labels")
        return tuple(sorted(found.items()))

    def _number(self, call: str, value: float, *, or_infinite: bool = False) -> float:
        """A number that can be sent, as those of NumPy cannot. An infinite one would make a sum infinite for ever."""
        with contextlib.suppress(OverflowError):
            if math.isfinite(value) or or_infinite:
                return float(value)
        raise ValueError(f"{self._family.name}: {call}({value!r}): must be a finite number")

    def _add(self, amount: float, labels: dict[str, object]) -> None:
        def add(series: _Series) -> None:
            series.value += amount

        REGISTRY.update(self._family, self._with(labels), add)


class Counter(_Metric):
    """A number that only grows, such as of tokens. On the page its name ends in `_total`."""

    def inc(self, amount: float = 1, **labels: object) -> None:
        """Adds to it. Raises `ValueError` for less than nothing, and for no finite number."""
        number = self._number("inc", amount)
        if number < 0:
            raise ValueError(f"{self._family.name}: inc({amount!r}): a counter only grows")
        self._add(number, labels)


class Gauge(_Metric):
    """A number that goes up and down. Each replica has its own, which ends with it."""

    def set(self, value: float, **labels: object) -> None:
        """Sets it. Raises `ValueError` for a number beyond those of a `float`."""
        number = self._number("set", value, or_infinite=True)

        def change(series: _Series) -> None:
            series.value = number

        REGISTRY.update(self._family, self._with(labels), change)

    def inc(self, amount: float = 1, **labels: object) -> None:
        """Adds to it. Raises `ValueError` for no finite number."""
        self._add(self._number("inc", amount), labels)

    def dec(self, amount: float = 1, **labels: object) -> None:
        """Takes from it. Raises `ValueError` for no finite number."""
        self._add(-self._number("dec", amount), labels)


class Histogram(_Metric):
    """How often values were in which range, and their sum."""

    def observe(self, value: float, **labels: object) -> None:
        """Counts a value. Raises `ValueError` for no finite number."""
        number = self._number("observe", value)
        index = bisect.bisect_left(self._family.buckets, number)

        def change(series: _Series) -> None:
            series.counts[index] += 1
            series.value += number

        REGISTRY.update(self._family, self._with(labels), change)


@overload
def metric(name: str, kind: Literal["counter"] = ..., help: str = ...) -> Counter: ...


@overload
def metric(name: str, kind: Literal["gauge"], help: str = ...) -> Gauge: ...


@overload
def metric(name: str, kind: Literal["histogram"], help: str = ..., *, buckets: Sequence[float] = ...) -> Histogram: ...


def metric(
    name: str, kind: str = "counter", help: str = "", *, buckets: Sequence[float] = BUCKETS
) -> Counter | Gauge | Histogram:
    """A metric of your own, which the page `/metrics` of the node shows: `cb.metric("tokens", "counter").inc(3)`.

    * `name`: letters, digits and `_`. Names that begin with `callboard_` are the node's.
    * `kind`: a `"counter"` has `inc`, a `"gauge"` has `set`, `inc` and `dec`, a `"histogram"` has `observe`.
    * `help`: what it counts, in a sentence.
    * `buckets`: the upper bounds of the buckets of a histogram; by default from 5 ms to 10 s, for seconds.

    Labels are named where it counts: `tokens.inc(3, model="x")`, or `tokens.labels(model="x").inc(3)`. The node adds
    the label `stage`, and `replica` to a gauge. The same name is the same metric wherever it is asked for.

    The node sums counters and histograms over all replicas, also those that have ended; a gauge ends with its replica.
    What has changed arrives within a second or so, and at the end of a replica; a crash loses that second. A process
    has at most 200 metrics with 1,000 series together, one for each set of labels: further ones, and labels that are
    not UTF-8, are not counted, and the log says so once.

    Raises `ValueError` for a name, kind, help or buckets that are not possible, and for a name with another kind.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}{did_you_mean(str(kind), KINDS)}; there are {', '.join(KINDS)}")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_:][A-Za-z0-9_:]*", name):
        raise ValueError(f"{name!r} is not the name of a metric: it has letters, digits and `_`")
    if name.startswith("callboard_"):
        raise ValueError(f"{name!r}: the metrics of the node begin with callboard_")
    if not isinstance(help, str):
        raise ValueError(f"help={help!r}: must be a text; labels are named where it counts: inc(model='x')")
    name = name.removesuffix("_total") if kind == "counter" else name
    _check_bytes("the name of a metric", name, _MAX_NAME_BYTES)
    _check_bytes("help", help, _MAX_HELP_BYTES)
    bounds = _bounds(buckets) if kind == "histogram" else ()
    with REGISTRY.lock:
        family = REGISTRY.families.get(name)
        if family is None:
            if len(REGISTRY.families) == _MAX_METRICS:
                raise ValueError(f"{name}: a process has at most {_MAX_METRICS} metrics")
            family = REGISTRY.families[name] = _Family(name, kind, help, bounds)
        if (family.kind, family.buckets) != (kind, bounds):
            raise ValueError(f"{name} is a {family.kind} already, or has other buckets")
    return {"counter": Counter, "gauge": Gauge, "histogram": Histogram}[kind](family)  # type: ignore[return-value]


def _bounds(buckets: Sequence[float]) -> tuple[float, ...]:
    # The bucket of all others is always there.
    bounds = tuple(float(bound) for bound in buckets if bound != math.inf)
    if not bounds or len(bounds) > _MAX_BUCKETS or not all(map(math.isfinite, bounds)):
        raise ValueError(f"buckets={buckets!r}: from 1 to {_MAX_BUCKETS} numbers")
    if any(first >= second for first, second in itertools.pairwise(bounds)):
        raise ValueError(f"buckets={buckets!r}: each must be above the one before it")
    return bounds


def _check_bytes(what: str, text: str, most: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what}: {text[:32]!r} has a character that UTF-8 cannot have") from None
    if size > most:
        raise ValueError(f"{what}: {text[:32]!r}… has more than {most} bytes")


def _quoted(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
