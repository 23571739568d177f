"""Pipelines as values: what `pipeline`, `ensemble`, `switch` and the other steps were given.

They only note it. Their meaning is the grammar of `stages` in a configuration file, which a node checks and runs.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from callboard._elsewhere import nearest_name
from callboard._options import check_names, route_path

# A service or function, as it was decorated, or a `Step`.
AnyStep = Any
# Knows the stage of a service or function.
NameOf = Callable[[AnyStep], str]

KINDS = ("image", "labels", "onnx", "process")
_ONNX_KEYS = (
    "engine", "library", "providers", "threads", "inter_threads", "spinning", "arena", "optimization", "batched",
    "pad", "isolate", "max_batch_size", "max_delay", "replicas", "scale_delay", "idle", "pinned", "memory", "queue",
    "contract", "crash_retries", "timeout", "max_abandoned_threads", "cost", "max_cost", "ageing", "affinity",
    "revision", "split", "cache", "cache_shared", "name", "route",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A step that is no Python code. At the top of a file it is served, unless it is a step of another one."""

    # The path of its route; None: the name of its variable.
    route: str | None

    def parts(self) -> list[AnyStep]:
        """Its direct steps."""
        return []

    def tree(self, name_of: NameOf) -> Any:
        """Itself in the grammar of `stages`."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False)
class NodeStage(Step):
    """A stage that the node runs: a model, or a built-in kind."""

    kind: str
    name: str
    keys: dict[str, Any]

    def tree(self, name_of: NameOf) -> Any:
        return self.name

    def __str__(self) -> str:
        return f"cb.onnx({self.keys['model']!r})" if self.kind == "onnx" else f"cb.stage({self.kind!r})"


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline(Step):
    steps: tuple[AnyStep, ...]

    def parts(self) -> list[AnyStep]:
        return list(self.steps)

    def tree(self, name_of: NameOf) -> Any:
        inner = [tree(step, name_of) for step in self.steps]
        return [step for each in inner for step in (each if isinstance(each, list) else [each])]


@dataclasses.dataclass(frozen=True, eq=False)
class Ensemble(Step):
    members: dict[str, AnyStep]
    partial: bool

    def parts(self) -> list[AnyStep]:
        return list(self.members.values())

    def tree(self, name_of: NameOf) -> Any:
        return {"ensemble": _trees(self.members, name_of), **({"partial": True} if self.partial else {})}


@dataclasses.dataclass(frozen=True, eq=False)
class Switch(Step):
    field: str
    cases: dict[str, AnyStep]
    default: AnyStep | None

    def parts(self) -> list[AnyStep]:
        return [*self.cases.values(), *([] if self.default is None else [self.default])]

    def tree(self, name_of: NameOf) -> Any:
        default = {} if self.default is None else {"default": tree(self.default, name_of)}
        return {"switch": self.field, "cases": _trees(self.cases, name_of), **default}


@dataclasses.dataclass(frozen=True, eq=False)
class Pick(Step):
    field: str

    def tree(self, name_of: NameOf) -> Any:
        return {"pick": self.field}


@dataclasses.dataclass(frozen=True, eq=False)
class Rename(Step):
    names: dict[str, str]

    def tree(self, name_of: NameOf) -> Any:
        return {"rename": self.names}


# ---- What users write ------------------------------------------------------------------------------------------------


def pipeline(*steps: AnyStep, route: str | None = None) -> Pipeline:
    """Steps in order: the output of each is the input of the next.

    A step is a service, a function, `onnx`, `stage`, or another pipeline, `ensemble`, `switch`, `pick` or `rename`; a
    list of steps is a pipeline. `route` is the path, by default the name of the variable: `best_label = pipeline(…)` is
    `/best-label`.

    Raises `TypeError` for no step or a wrong one, and `ValueError` for a path that is wrong. That the output of a step
    can be the input of the next is checked by their hints when the file is served.
    """
    if not steps:
        raise TypeError("pipeline has no step")
    found = tuple(_step(f"pipeline: step {number}", step) for number, step in enumerate(steps, 1))
    return Pipeline(_path(route), found)


def ensemble(
    named: Mapping[str, AnyStep] | None = None,
    /,
    *,
    partial: bool = False,
    route: str | None = None,
    **members: AnyStep,
) -> Ensemble:
    """All members on the same input, at the same time: `ensemble(a=Cats, b=Dogs)`. The output is a map by name.

    The first error of a member is the error of the call. With `partial`, a member that fails leaves
    `{"error": {"kind": …, "message": …}}` in its place, and the call fails only if all members fail. Names that are no
    identifiers go in a mapping: `ensemble({"a-1": Cats})`. `route` is as of `pipeline`.

    Raises `TypeError` without a member or for a wrong one, and `ValueError` for a path that is wrong.
    """
    return Ensemble(_path(route), _named("ensemble", named, members), partial)


def switch(
    field: str,
    named: Mapping[str, AnyStep] | None = None,
    /,
    *,
    default: AnyStep | None = None,
    route: str | None = None,
    **cases: AnyStep,
) -> Switch:
    """One of the cases, by the value of a field of the input: `switch("want", best=Best, all=All)`.

    The case gets the whole input. `default` is for all other values; without it they are refused with status 422.
    Values that are no identifiers go in a mapping: `switch("size", {"1": Small, "2": Large})`. The value is a text, an
    integer, or a bool, whose case is `"true"` or `"false"`. `route` is as of `pipeline`.

    Raises `TypeError` without a field or a case or for a wrong one, and `ValueError` for a path that is wrong.
    """
    if not isinstance(field, str) or not field:
        raise TypeError(f"switch: {field!r} is no field: write its name")
    default = None if default is None else _step("switch: the default", default)
    return Switch(_path(route), field, _named("switch", named, cases), default)


def pick(field: str) -> Pick:
    """A step: the value of one field of the input. An input without that field is refused with status 422."""
    return Pick(None, field)


def rename(**names: str) -> Rename:
    """A step: the input with other names for some of its fields, from the old name to the new one.

    `rename(picture="image")` makes `{"image": …}` of `{"picture": …}`, for a model whose input is called `image`. An
    input without such a field is refused with status 422.
    """
    return Rename(None, names)


def onnx(model: str | os.PathLike[str], /, **options: Any) -> NodeStage:
    """A step: an ONNX model, which the node runs without Python. The path is relative to the file that is served.

    A model with one input takes an array, or nested lists of numbers; any model takes a map of them by the names of its
    inputs. A model with one output gives an array; one with several gives a map of arrays. An array must have the dtype
    of the model's input, and its shape without the batch axis; another one is refused with status 422.

    The options are the keys of a stage of kind `onnx` in a configuration file (`docs/operations/stages.md`),
    such as `max_batch_size`, `max_delay` (a text such as `"2ms"`), `replicas`, `threads` and `batched`. `name` is that
    of the stage, by default that of the file; `route` is as of `pipeline`.

    Raises `TypeError` for an unknown option, and `ValueError` for a path of a route that is wrong. The model is read
    when the file is served.
    """
    check_names("onnx", options, _ONNX_KEYS)
    path = os.fspath(model)
    name = options.pop("name", None) or re.sub(r"[^A-Za-z0-9_.~-]", "-", os.path.basename(path).removesuffix(".onnx"))
    return NodeStage(_path(options.pop("route", None)), "onnx", name, {"model": path, **options})


def stage(kind: str, /, *, name: str | None = None, route: str | None = None, **keys: Any) -> NodeStage:
    """A step: a stage of another kind of the configuration file: `stage("labels", names=["cat", "dog"])`.

    The keys are those of the file. The kinds are `"image"`, `"labels"`, `"onnx"` and `"process"`: see
    `docs/operations/stages.md`. `name` is that of the stage, by default the kind; `route` is as of `pipeline`.

    Raises `ValueError` for an unknown kind, and `TypeError` for the kind `"onnx"` without a `model`. The keys are
    checked when the file is served.
    """
    if kind not in KINDS:
        near = nearest_name(str(kind), KINDS)
        raise ValueError(f"stage: there is no kind {kind!r}" + (f": did you mean {near!r}?" if near else ""))
    if kind == "onnx" and "model" not in keys:
        raise TypeError("stage('onnx') needs its model: use onnx('model.onnx')")
    return NodeStage(_path(route), kind, name or kind, keys)


def _named(what: str, named: Mapping[str, AnyStep] | None, more: dict[str, AnyStep]) -> dict[str, AnyStep]:
    found = {**(named or {}), **more}
    if not found:
        raise TypeError(f"{what} has no step: give it steps by name")
    return {str(name): _step(f"{what}: {name}", step) for name, step in found.items()}


def _step(where: str, value: Any) -> AnyStep:
    if isinstance(value, Step):
        return value
    if isinstance(value, (list, tuple)):
        return Pipeline(None, tuple(_step(where, step) for step in value))
    if isinstance(value, type) or (isinstance(value, Callable) and hasattr(value, "__qualname__")):  # type: ignore[arg-type]
        return value
    if hasattr(type(value), "predict"):
        raise TypeError(f"{where}: use the class `{type(value).__name__}` itself, not an instance")
    raise TypeError(f"{where}: {value!r} is no step: use a service, a function, onnx, or a pipeline of them")


def _path(route: str | None) -> str | None:
    return None if route is None else route_path(route)


# ---- What they mean --------------------------------------------------------------------------------------------------


def walk(step: AnyStep) -> list[AnyStep]:
    """The step and all inside of it, from the outside in."""
    return [step, *(inner for part in parts(step) for inner in walk(part))]


def parts(step: AnyStep) -> list[AnyStep]:
    return step.parts() if isinstance(step, Step) else []


def tree(step: AnyStep, name_of: NameOf) -> Any:
    """The step in the grammar of `stages`, which is that of `PipelinePlan` in Rust."""
    return step.tree(name_of) if isinstance(step, Step) else name_of(step)


def _trees(steps: dict[str, AnyStep], name_of: NameOf) -> dict[str, Any]:
    return {name: tree(step, name_of) for name, step in steps.items()}
