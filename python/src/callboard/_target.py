"""Finds services and functions: a target such as `app.py:Name`, `package.module:Name` or `app.py:Class.method`."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import msgspec

from callboard._api import ASGI_ROUTE, METHOD, SERVICE, Method, Service
from callboard._arrays import plain
from callboard._elsewhere import nearest_name
from callboard._envelope import decode, encode
from callboard._keyed import Objects, State, call_signature, methods_of
from callboard._options import hyphened, path_parameters, split_name, takes_path
from callboard._response import Declared, Response
from callboard._said import said
from callboard._signature import Signature

# The batch size of `@batched` without a number.
DEFAULT_BATCH_SIZE = 32


class TargetError(Exception):
    """There is no such file, module or name, or it cannot be served."""


@dataclasses.dataclass
class Route:
    """One method of a class, or one function, with all that is known of it without an instance."""

    target: str
    name: str
    path: str
    owner: Any
    # None for a function.
    attribute: str | None
    service: Service
    method: Method
    signature: Signature
    # The method whose replicas run it, if they are not its own.
    host: Route | None = None
    # The signature of the method itself, where this is what a replica runs of a keyed class.
    own: Signature | None = None

    @property
    def max_batch_size(self) -> int:
        if self.method.batched:
            return self.method.max_batch_size or self.service.max_batch_size or DEFAULT_BATCH_SIZE
        return self.service.max_batch_size or 1

    @property
    def examples(self) -> tuple[Any, ...]:
        """Valid inputs. Those of a service are for `predict`; a class may have them as an attribute, too."""
        if self.attribute not in (None, "predict") or self.method.examples or self.service.keyed is not None:
            return self.method.examples
        return self.service.examples or tuple(getattr(self.owner, "examples", ()))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of HTTP that call it. None: POST."""
        is_main = self.attribute in (None, "predict")
        return self.method.methods or (self.service.methods if is_main else ())

    @property
    def public_name(self) -> str:
        """Its name for callers: its path, and its first method of HTTP before it if `POST` does not call it."""
        return self.path if not self.methods or "POST" in self.methods else f"{self.methods[0]} {self.path}"

    @property
    def openai(self) -> str | None:
        """How clients of OpenAI's API call it."""
        return self.method.openai or (self.service.openai if self.attribute in (None, "predict") else None)

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names by which clients of OpenAI's API ask for it."""
        return self.method.aliases or (self.service.aliases if self.attribute in (None, "predict") else ())

    @property
    def mcp(self) -> bool:
        """Whether agents may call it as a tool."""
        return self.method.mcp or (self.service.mcp and self.attribute in (None, "predict"))

    @property
    def response(self) -> Declared | None:
        """What it says of its answers over HTTP."""
        found = self.method.response or (self.service.response if self.attribute in (None, "predict") else None)
        if found is not None and found.media_type is not None:
            body = "" if self.signature.output is str else b""
            found = dataclasses.replace(found, media_type=Response(body, media_type=found.media_type).media_type)
        if self.signature.returns_response:
            found = dataclasses.replace(found or Declared(), chooses_media_type=True)
        return found

    def reads(self, option: str) -> list[str]:
        """The `headers` or the `query` parameters of a request that its code reads."""
        own = getattr(self.method, option)
        listed = getattr(self.service, option) if own is None else own
        more = (argument.listed for argument in self.signature.request)
        return list(dict.fromkeys((*listed, *(name for kind, name in more if kind == option))))

    def examples_as_json(self) -> list[Any]:
        """The examples as JSON has them: arrays as lists, files as base64. `TargetError` names a wrong one."""
        found = []
        needed = [argument.name for argument in self.signature.request if not argument.defaults]
        if self.examples and needed:
            reason = f"an example has no `{needed[0]}`, which is no part of the input: give the argument a default"
            raise TargetError(f"{self.signature.where}: {reason}")
        for number, example in enumerate(self.examples, 1):
            try:
                value = decode(encode(example, self.signature.input_forms))
                self.signature.arguments(value)
                found.append(msgspec.json.decode(msgspec.json.encode(plain(value))))
            except (TypeError, ValueError) as error:
                raise TargetError(f"{self.signature.where}: example {number}: {said(error)}") from error
        return found

    @property
    def documentation(self) -> str:
        own = getattr(self.owner, self.attribute).__doc__ if self.attribute else None
        return inspect.cleandoc(own or self.owner.__doc__ or "")

    @property
    def description(self) -> str:
        return " ".join(self.documentation.partition("\n\n")[0].split())

    @property
    def stage(self) -> str:
        """The name of its stage."""
        if self.path.startswith(f"{ASGI_ROUTE}/"):
            # Two apps have two names, also at `/b/c` and `/b-c`.
            return "asgi-" + self.path.removeprefix(f"{ASGI_ROUTE}/").replace("/", ":")
        method, path = split_name(self.public_name)
        name = path.lstrip("/@").replace("/", "-").replace("{", ":").replace("}", "")
        return name if method is None else f"{method.lower()}-{name}"

    def instance(self) -> Any:
        """A new instance of the class, before its `setup`; None for a function."""
        if self.service.keyed is not None:
            return Objects(self.owner)
        return self.owner() if self.attribute else None

    def computed(self) -> Route:
        """The same as a replica runs it: a method of a keyed class gets the state of the key with its input."""
        if self.service.keyed is None or self.own is not None:
            return self
        return dataclasses.replace(self, signature=call_signature(self.signature), own=self.signature)

    @property
    def in_loop(self) -> bool:
        """Whether an event loop runs it: asynchronous code, and other code in several threads."""
        return self.signature.is_async or self.method.concurrency > 1

    @property
    def own_signature(self) -> Signature:
        """The signature of the code itself."""
        return self.own or self.signature

    def call(self, instance: Any, arguments: dict[str, Any]) -> Any:
        """Calls the method of an object."""
        return getattr(instance, str(self.attribute))(**arguments)

    def bind(self, instance: Any) -> Callable[..., Any]:
        if self.own is not None:
            call = instance.call_async if self.signature.is_async else instance.call
            return functools.partial(call, self)
        bound: Callable[..., Any] = getattr(instance, self.attribute) if self.attribute else self.owner
        return bound

    def describe(self) -> dict[str, Any]:
        """The route as `callboard.describe` prints it."""
        return {
            "name": self.name,
            "target": self.target,
            "route": self.public_name,
            "method": self.attribute,
            "replicas_of": self.host.stage if self.host else None,
            "input": self.signature.input_schema(),
            "raw_body": self.signature.raw_body(),
            "output": self.signature.output_schema(),
            "examples": self.examples_as_json(),
            "headers": self.reads("headers"),
            "query": self.reads("query"),
            "methods": list(self.methods),
            "openai": self.openai,
            "aliases": list(self.aliases),
            "mcp": self.mcp,
            "documentation": self.documentation if self.mcp else None,
            "response": None if self.response is None else dataclasses.asdict(self.response),
            "request": [argument.describe() for argument in (*self.signature.implied, *self.signature.request)],
            "streams": self.signature.streams,
            "batched": self.method.batched,
            "max_batch_size": self.max_batch_size,
            "replicas": _bounds(self.service.replicas),
            "timeout_ms": self.service.timeout_ms,
            "contract": self.service.contract,
            "warm": self.service.warm,
            "share_setup": self.service.share_setup,
            "start_timeout_ms": self.service.start_timeout_ms,
            "max_delay_ms": self.method.max_delay_ms or self.service.max_delay_ms,
            "queue": self.service.queue,
            "memory_limit": self.service.memory_limit,
            "devices": self.service.devices,
            "env": self.service.env,
            "affinity": self.service.affinity,
            "concurrency": self.method.concurrency,
            "description": self.description,
            "parameters": list(self.signature.hints),
            "is_value": self.signature.is_value,
        }


def _bounds(replicas: int | tuple[int, int]) -> int | dict[str, int]:
    """A number of replicas, or its bounds as a configuration file has them."""
    return {"min": replicas[0], "max": replicas[1]} if isinstance(replicas, tuple) else replicas


def load_route(target: str) -> Route:
    """The one route of a target that has a name."""
    return route_of(load_module(split(target)[0]), target)


def route_of(module: ModuleType, target: str) -> Route:
    """The one route of a target that has a name, in its module."""
    source, name = split(target)
    if not name:
        raise TargetError(f"the target {target!r} has no name: write {target}:Name")
    class_name, _, attribute = name.partition(".")
    owner = named(module, class_name)
    return main_route(routes_of(owner, f"{source}:{class_name}"), class_name, attribute)


def beside(route: Route, methods: list[str]) -> list[Route]:
    """The methods of its class that run in its replicas beside it. `TargetError` names one that cannot."""
    if not methods:
        return []
    known = {other.attribute: other for other in routes_of(route.owner, route.target)}
    found = []
    for name in methods:
        other = known.get(name)
        if other is None:
            raise TargetError(f"{route.owner.__name__} has no method `{name}` that is a route")
        if other.signature.streams != route.signature.streams or other.method.concurrency != route.method.concurrency:
            raise TargetError(
                f"{route.signature.where} and {other.signature.where} cannot share replicas: both must stream or "
                "neither, with the same @concurrent; remove `replicas_of`"
            )
        found.append(other)
    return found


def main_route(routes: list[Route], class_name: str, attribute: str = "") -> Route:
    """The route of this method; without one of `predict`, or of a single method, or of a function."""
    for route in routes:
        if route.attribute == (attribute or "predict") or route.attribute is None:
            return route
    if not attribute and len(routes) == 1:
        return routes[0]
    raise TargetError(f"{class_name} has no method `{attribute or 'predict'}` that is a route")


def find_route(routes: Iterable[Route], name: str) -> Route | None:
    """The route that a name means, as on a node: a path alone is that of `POST`, else of `GET`, else the only one."""
    method, path = split_name(name)
    at = _routes_at(routes, path)
    for wanted in ("POST", "GET") if method is None else (method,):
        for route in at:
            if wanted in (route.methods or ("POST",)):
                return route
    return at[0] if method is None and len(at) == 1 else None


def methods_at(routes: Iterable[Route], name: str) -> list[str]:
    """The methods of the routes at the path of this name, as a node lists them."""
    found = [method for route in _routes_at(routes, split_name(name)[1]) for method in (route.methods or ("POST",))]
    return list(dict.fromkeys([*found, *(["HEAD"] if "GET" in found else [])]))


def _routes_at(routes: Iterable[Route], path: str) -> list[Route]:
    """The routes of a path. A literal segment wins over a parameter."""
    fitting = [route for route in routes if route.path == path or takes_path(route.path, path)]
    first = min(fitting, key=lambda route: [each.startswith("{") for each in route.path.split("/")], default=None)
    return [route for route in fitting if first is not None and route.path == first.path]


def split(target: str) -> tuple[str, str]:
    """The file or module, and the name in it or an empty text."""
    source, colon, name = target.rpartition(":")
    if not colon or "/" in name or "\\" in name:
        return target, ""
    return source, name


def load_module(source: str) -> ModuleType:
    """Imports a file or module. Errors of its code are not caught."""
    if source.endswith(".py") or os.sep in source:
        return _load_file(source)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{source}.".startswith(f"{error.name}."):
            raise TargetError(f"there is no module {error.name!r}") from None
        raise


def _load_file(source: str) -> ModuleType:
    path = os.path.abspath(source)
    if not os.path.isfile(path):
        raise TargetError(f"there is no file {source}")
    sys.path.insert(0, os.path.dirname(path))
    root, package = _package_of(path)
    if package:
        sys.path.insert(0, root)
        return importlib.import_module(package)
    name = os.path.basename(path).removesuffix(".py")
    # A file may be called as a module that is loaded already, such as `queue.py`.
    name = f"_callboard_{name}" if name in sys.modules else name
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{source} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _package_of(path: str) -> tuple[str, str]:
    """The directory above the package that a file is in, and its name as a module: relative imports need both.

    An empty name, if the file is in no package, or if something else has the name of the package.
    """
    directory, name = os.path.split(path.removesuffix(".py"))
    parts = [] if name == "__init__" else [name]
    while os.path.isfile(os.path.join(directory, "__init__.py")):
        directory, name = os.path.split(directory)
        parts.insert(0, name)
    root = os.path.join(directory, parts[0]) if parts else ""
    if not all(part.isidentifier() for part in parts) or not os.path.isfile(os.path.join(root, "__init__.py")):
        return directory, ""
    loaded = sys.modules.get(parts[0])
    is_another = loaded is not None and root not in map(os.path.abspath, getattr(loaded, "__path__", []))
    return directory, "" if is_another or parts[0] in sys.stdlib_module_names else ".".join(parts)


def named(module: ModuleType, name: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    near = nearest_name(name, [each for each in vars(module) if not each.startswith("_")])
    raise TargetError(f"{module.__name__} has no {name!r}" + (f": did you mean {near!r}?" if near else ""))


# Methods with a meaning of their own.
_HOOKS = ("cleanup", "health", "prepare", "setup")


def routes_of(owner: Any, target: str) -> list[Route]:
    """The routes of a class or function. A plain class with `predict` is served as if it were decorated."""
    if not callable(owner):
        raise TargetError(f"{target} is neither a class nor a function")
    is_class = isinstance(owner, type)
    service = vars(owner).get(SERVICE)
    if service is None:
        path = owner.__name__ if not is_class else hyphened(owner.__name__)
        service = Service(is_function=not is_class, name=owner.__name__, route=f"/{path}")
    try:
        routes = _class_routes(owner, service, target) if is_class else [_function_route(owner, service, target)]
    except TypeError as error:
        raise TargetError(str(error)) from error
    if not routes:
        own = [name for name, value in vars(owner).items() if callable(value) and not name.startswith("_")]
        own = [name for name in own if name not in _HOOKS]
        public = [name for name in dir(owner) if not name.startswith("_")]
        near = nearest_name("predict", public) or (own[0] if len(own) == 1 else None)
        if near is None and "__call__" in vars(owner):
            near = "__call__"
        hint = f"; is `{near}` meant to be it?" if near else ""
        if own:
            hint += f" Or mark {', '.join(f'`{name}`' for name in own[:8])} with @cb.route('/path')"
        raise TargetError(f"{target} has no method `predict`, and none with @route{hint}")
    return routes


def _function_route(fn: Any, service: Service, target: str) -> Route:
    method = getattr(fn, METHOD, Method())
    path, methods = method.route or service.route, method.methods or service.methods
    signature = Signature(fn, service.name, drop_self=False, batched=method.batched, path=path, methods=methods)
    _check_concurrency(method, signature, service)
    return _checked(Route(target, service.name, path, fn, None, service, method, signature))


def _class_routes(cls: Any, service: Service, target: str) -> list[Route]:
    _check_constructor(cls)
    _check_cleanup(cls)
    names = [name for name in dir(cls) if name != "predict" and _is_route(cls, name)]
    if service.keyed is not None:
        State(cls)
        names = [name for name in methods_of(cls) if name != "predict"]
    # In the order in which they are written.
    names.sort(key=lambda name: getattr(getattr(cls, name), "__code__", _NO_CODE).co_firstlineno)
    if callable(getattr(cls, "predict", None)):
        names.insert(0, "predict")
    routes = [_method_route(cls, name, service, target) for name in names]
    if service.keyed is not None and inspect.iscoroutinefunction(getattr(cls, "setup", None)):
        other = next((route for route in routes if not route.signature.is_async), None)
        if other is not None:
            raise TypeError(f"{cls.__name__}.setup is async, so `{other.attribute}` has to be: `async def`")
    # A replica runs batches of methods that answer alike and as many at once. The first of them has the replicas.
    hosts: dict[tuple[bool, int], Route] = {}
    for route in routes:
        own = route.method.share_replicas
        if service.share_replicas if own is None else own:
            host = hosts.setdefault((route.signature.streams, route.method.concurrency), route)
            route.host = None if host is route else host
    return routes


_NO_CODE = (lambda: None).__code__


def _is_route(cls: Any, name: str) -> bool:
    method = getattr(inspect.getattr_static(cls, name), METHOD, None)
    return isinstance(method, Method) and method.route is not None


def _method_route(cls: Any, name: str, service: Service, target: str) -> Route:
    is_static = isinstance(inspect.getattr_static(cls, name), (staticmethod, classmethod))
    fn = getattr(cls, name)
    method = getattr(fn, METHOD, Method())
    is_main = name == "predict"
    base = service.route if service.keyed is None else f"{service.route}/{{key}}"
    path = method.route or (base if is_main else f"{base}/{name}")
    where, methods = f"{service.name}.{name}", method.methods or (service.methods if is_main else ())
    signature = Signature(
        fn,
        where,
        drop_self=not is_static,
        batched=method.batched,
        path=path,
        methods=methods,
        implied=() if service.keyed is None else ("key",),
    )
    _check_concurrency(method, signature, service)
    if service.keyed is not None:
        _check_keyed(path, method, signature)
    if is_main:
        return _checked(Route(target, service.name, path, cls, name, service, method, signature))
    return _checked(Route(f"{target}.{name}", f"{service.name}.{name}", path, cls, name, service, method, signature))


def _check_keyed(path: str, method: Method, signature: Signature) -> None:
    if "key" not in path_parameters(path):
        raise TypeError(
            f"{signature.where}: a route of a keyed class has the key in its path, such as '/cart/{{key}}/x'"
        )
    wrong = {
        "yields: a method of a keyed class has one output": signature.streams,
        "@batched: a key has one call at a time": method.batched,
        "examples: they would change the keys that they call": bool(method.examples),
        "openai and mcp: the key is in the path": bool(method.openai or method.mcp),
        "status_code, media_type and response_description are not for keyed classes": method.response is not None,
    }
    for what, is_wrong in wrong.items():
        if is_wrong:
            raise TypeError(f"{signature.where}: {what}")


def _checked(route: Route) -> Route:
    if route.signature.streams and route.response is not None and route.response.media_type is not None:
        raise TypeError(f"{route.signature.where}: media_type: a stream has the one that its client accepts")
    return route


def _check_constructor(cls: Any) -> None:
    try:
        inspect.signature(cls).bind()
    except ValueError:
        return
    except TypeError as error:
        raise TypeError(
            f"{cls.__name__}.__init__: {error}: a service is made without arguments; load in `setup`"
        ) from None


_ERROR_NAMES = ("error", "exc", "exception")


def _check_cleanup(cls: Any) -> None:
    cleanup = inspect.getattr_static(cls, "cleanup", None)
    if inspect.isfunction(cleanup):
        cleanup = cleanup.__get__(object())
    elif isinstance(cleanup, (staticmethod, classmethod)):
        cleanup = cleanup.__get__(None, cls)
    else:
        return
    try:
        error_parameter(cleanup)
    except TypeError as error:
        raise TypeError(f"{cls.__name__}.{error}") from None


def error_parameter(cleanup: Callable[..., Any]) -> inspect.Parameter | None:
    """The parameter of a bound `cleanup` that gets what ends the replica: one without a default, or with a name."""
    signature = inspect.signature(cleanup)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    each = [parameter for parameter in signature.parameters.values() if parameter.kind not in variadic]
    needed = [parameter for parameter in each if parameter.default is parameter.empty]
    if len(needed) > 1 or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in needed):
        raise TypeError(
            f"cleanup{signature}: it gets one argument at most, by its place: write `cleanup(self)`, or "
            "`cleanup(self, error)` for what ends the replica"
        )
    named = [parameter for parameter in each if parameter.name in _ERROR_NAMES]
    return next(iter(needed or named), None)


def _check_concurrency(method: Method, signature: Signature, service: Service) -> None:
    if method.concurrency > 1 and not signature.is_async and service.keyed is not None:
        raise TypeError(f"{signature.where}: @concurrent of a keyed class is for `async def`; use more replicas")
    if method.concurrency > 1 and method.batched:
        raise TypeError(f"{signature.where}: @concurrent and @batched exclude each other")
