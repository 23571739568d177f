"""The app of a file: its services and functions, its pipelines, and their dependencies.

* A service or function of the file has a route. As a step of a pipeline it has none, unless it was given one
  (`@service(route="/x")`) or another service depends on it.
* A pipeline at the top of the file has a route, unless it is a step of another one.
* The dependencies of a service are served with it, wherever it was imported from.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from callboard._api import NOTED, SERVICE
from callboard._auth import AUTH_ROUTE
from callboard._compose import AnyStep, NodeStage, Step, parts, tree, walk
from callboard._depends import depends_of
from callboard._fit import Misfit, check
from callboard._hooks import NodeHooks, not_found
from callboard._options import hyphened
from callboard._target import Route, TargetError, load_module, main_route, named, routes_of, split


@dataclasses.dataclass
class App:
    """All that a file serves."""

    # In the order of the file; those of steps and dependencies from elsewhere behind them.
    routes: list[Route]
    # The routes of `routes` that are steps only.
    steps: list[Route]
    stages: list[NodeStage]
    # By the path of the route.
    pipelines: dict[str, tuple[str, Step]]
    _builder: _Builder

    def describe(self) -> dict[str, Any]:
        """The app as `callboard.describe` prints it."""
        stages = [{"name": stage.name, "kind": stage.kind, "keys": stage.keys} for stage in self.stages]
        name_of = self._builder.stage_of
        pipelines = [
            {"name": name, "route": path, "steps": tree(step, name_of)} for path, (name, step) in self.pipelines.items()
        ]
        found = {"services": [self._service(route) for route in self.routes], "stages": stages, "pipelines": pipelines}
        hooks = self._builder.hooks()
        return {**found, "hooks": hooks} if hooks else found

    def _service(self, route: Route) -> dict[str, Any]:
        depends = [
            {"attribute": attribute, "route": self._builder.path_of(found)}
            for attribute, found in depends_of(route.owner)
        ]
        is_step = any(route is step for step in self.steps)
        keyed = route.service.keyed
        more = {"depends": depends, "is_step": is_step, "keyed": keyed and dataclasses.asdict(keyed)}
        return {**route.describe(), **{key: value for key, value in more.items() if value}}


def load_app(target: str) -> App:
    """The app of a file or module, or of one name in it."""
    source, name = split(target)
    noted_before = len(NOTED)
    module = load_module(source)
    builder = _Builder(source, module)
    try:
        app = builder.build([(name, named(module, name))] if name else list(builder.served()))
        if not name:
            builder.check_noted(app, NOTED[noted_before:])
        return app
    except TypeError as error:
        raise TargetError(str(error)) from error


class _Builder:
    def __init__(self, source: str, module: ModuleType) -> None:
        self._source = source
        self._module = module
        self._names: dict[int, str] = {}
        # The name that its author has given comes before that of `asgi`.
        for name, value in sorted(vars(module).items(), key=lambda item: item[0].startswith("@")):
            self._names.setdefault(id(value), name)
        self._routes: dict[int, list[Route]] = {}

    def served(self) -> Iterator[tuple[str, Any]]:
        """The names of the module that are served."""
        values = [(name, value) for name, value in vars(self._module).items() if self._names[id(value)] == name]
        services = [(name, value) for name, value in values if SERVICE in getattr(value, "__dict__", {})]
        composed = [(name, value) for name, value in values if isinstance(value, Step)]
        # Imported names are only served if the module has nothing of its own.
        own = [(name, value) for name, value in services if value.__module__ == self._module.__name__]
        found = own or ([] if composed else services)
        yield from found
        # Nothing is served without the one that names callers, and apps are mounted, wherever they were imported from.
        yield from (each for each in services if vars(each[1])[SERVICE].route.startswith("@") and each not in found)
        inside = {id(part) for _, step in composed for inner in walk(step) for part in parts(inner)}
        yield from ((name, step) for name, step in composed if id(step) not in inside)

    def hooks(self) -> dict[str, Any] | None:
        hooks = NodeHooks([self._module])
        return hooks.describe(self._source) if hooks.start or hooks.stop else None

    def check_noted(self, app: App, noted: list[tuple[str, Any]]) -> None:
        """Each function that the import has decorated does what it is there for."""
        NodeHooks([self._module]).check(noted, self._source)
        # Of several functions that name callers an app chooses one.
        names_callers = any(route.path == AUTH_ROUTE for route in app.routes)
        for word, function in noted:
            is_missing = word == "asgi" and not any(route.owner is function for route in app.routes)
            if is_missing or (word == "auth" and not names_callers):
                raise TargetError(not_found(word, function, self._source))

    def build(self, served: list[tuple[str, Any]]) -> App:
        composed = [(name, value) for name, value in served if isinstance(value, Step)]
        owners = [value for _, value in served if not isinstance(value, Step)]
        leaves = [part for _, step in composed for part in walk(step) if not isinstance(part, Step)]
        depended = self._depended([*owners, *leaves])
        public = {id(owner) for owner in (owners if not composed else self._without(owners, leaves))}
        public |= {id(owner) for owner in depended}
        routes = [route for owner in _distinct([*owners, *leaves, *depended]) for route in self.routes(owner)]
        if not routes and not composed:
            raise TargetError(
                f"{self._source} has no service: decorate a class with @service, or a function with @function"
            )
        steps = [route for route in routes if id(route.owner) not in public and route is self.main(route.owner)]
        stages = _distinct([part for _, step in composed for part in walk(step) if isinstance(part, NodeStage)])
        app = App(routes, steps, stages, self._pipelines(composed), self)
        self._check_names(app)
        self._check_calls(app)
        self._check_models(stages)
        for name, step in composed:
            self._check_types(name, step)
        return app

    def _without(self, owners: list[Any], leaves: list[Any]) -> list[Any]:
        """The owners that are no steps, or have a route of their own."""
        steps = {id(leaf) for leaf in leaves}
        return [owner for owner in owners if id(owner) not in steps or self.main(owner).service.has_own_route]

    def _depended(self, owners: list[Any]) -> list[Any]:
        """Their dependencies, and those of these."""
        found: list[Any] = []
        waiting = list(owners)
        while waiting:
            for _, dependency in depends_of(waiting.pop()):
                target = dependency.target
                if not isinstance(target, str) and not any(target is each for each in found):
                    found.append(target)
                    waiting.append(target)
        return found

    def _pipelines(self, composed: list[tuple[str, Step]]) -> dict[str, tuple[str, Step]]:
        found: dict[str, tuple[str, Step]] = {}
        for name, step in composed:
            path = step.route or "/" + hyphened(name)
            if path in found:
                raise TargetError(f"{path} is the route of `{found[path][0]}` and of `{name}`: give one route='/…'")
            found[path] = (name, step)
        return found

    # ---- Services and functions --------------------------------------------------------------------------------------

    def routes(self, owner: Any) -> list[Route]:
        if id(owner) not in self._routes:
            self._routes[id(owner)] = routes_of(owner, self._target_of(owner))
        return self._routes[id(owner)]

    def main(self, owner: Any) -> Route:
        """The route that a step or a dependency means."""
        return main_route(self.routes(owner), owner.__name__)

    def stage_of(self, owner: Any) -> str:
        return self.main(owner).stage

    def path_of(self, dependency: Any) -> str:
        return (
            str(dependency.target) if isinstance(dependency.target, str) else self.main(dependency.target).public_name
        )

    def _target_of(self, owner: Any) -> str:
        """The name that a worker imports: of this module, else of the one that has it."""
        name = self._names.get(id(owner))
        if name is not None:
            return f"{self._source}:{name}"
        if owner.__module__ == self._module.__name__ or not owner.__qualname__.isidentifier():
            raise TargetError(
                f"`{owner.__qualname__}` cannot be a step: a worker finds only a class or function at the top of a file"
            )
        return f"{owner.__module__}:{owner.__qualname__}"

    # ---- Mistakes ----------------------------------------------------------------------------------------------------

    def _check_names(self, app: App) -> None:
        at: dict[tuple[str, str], Route] = {}
        for route in app.routes:
            # The names of private routes are those of their stages.
            if route.path.startswith("@") or any(route is step for step in app.steps):
                continue
            for method in route.methods or ("POST",):
                if (other := at.setdefault((route.path, method), route)) is not route:
                    further = f"{route.path}/{hyphened(route.name.rpartition('.')[2])}"
                    raise TargetError(
                        f"`{other.name}` and `{route.name}` are both called by {method} {route.path}: give one other "
                        f"methods, or another path, such as {further}"
                    )
        known: dict[str, str] = {}
        named = [(route.stage, f"`{route.name}`") for route in app.routes]
        for name, what in named + [(stage.name, str(stage)) for stage in app.stages]:
            if name in known:
                raise TargetError(f"the stages of {known[name]} and {what} are both called `{name}`: give one a name")
            known[name] = what
        paths = {route.public_name: route for route in app.routes if not any(route is step for step in app.steps)}
        for path, (name, _) in app.pipelines.items():
            if path in paths:
                raise TargetError(f"{path} is the route of `{paths[path].name}` and of `{name}`: give one route='/…'")

    def _check_calls(self, app: App) -> None:
        """The node finds routes that nothing serves. That of a step it cannot know."""
        steps = {step.path: step for step in app.steps}
        for route in app.routes:
            for attribute, dependency in depends_of(route.owner):
                step = steps.get(dependency.target) if isinstance(dependency.target, str) else None
                if step is not None and step.path not in app.pipelines:
                    word = "function" if step.service.is_function else "service"
                    raise TargetError(
                        f"{route.owner.__name__}.{attribute}: `{step.path}` is a step of a pipeline, without a route "
                        f"of its own: give it one, @{word}(route={step.path!r})"
                    )

    def _check_models(self, stages: list[NodeStage]) -> None:
        base = os.path.dirname(os.path.abspath(self._source)) if self._source.endswith(".py") else os.getcwd()
        for stage in stages:
            if "model" in stage.keys and not os.path.isfile(os.path.join(base, str(stage.keys["model"]))):
                raise TargetError(f"{stage}: there is no file {os.path.join(base, str(stage.keys['model']))}")

    def _check_types(self, name: str, step: AnyStep) -> None:
        try:
            check(step, lambda owner: self.main(owner).signature)
        except Misfit as error:
            raise TargetError(f"{name}: {error}") from error


def _distinct(values: list[Any]) -> list[Any]:
    return list({id(value): value for value in values}.values())
