"""The values of options: durations, sizes, counts, names and paths, with errors that say how to write them."""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NoReturn, get_args

from callboard._elsewhere import OPTIONS, cure, did_you_mean

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_MAX_TIMEOUT_MS = 10**12
# The limits of a configuration file.
_MAX_DELAY_MS = 60_000


def timeout_ms(timeout: str | float, name: str = "timeout") -> int:
    """Milliseconds of `"5s"`, `"200ms"`, `"1m"` or a number of seconds. Errors call it by its name."""
    form = f'{name}={timeout!r}: write "5s", "200ms" or a number of seconds'
    if isinstance(timeout, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*", timeout)
        if not match:
            raise ValueError(form)
        millis: Any = float(match[1]) * _UNITS[match[2]]
    elif isinstance(timeout, numbers.Real) and not isinstance(timeout, bool):
        millis = timeout * 1000
    else:
        raise TypeError(form)
    if not 1 <= millis <= _MAX_TIMEOUT_MS:
        raise ValueError(f"{name}={timeout!r}: must be from a millisecond to 10^9 seconds")
    return int(millis)


def hyphened(name: str) -> str:
    """`ImageSearch` and `image_search` as `image-search`; `HTTPEcho` as `http-echo`."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return name.replace("_", "-").lower()


def check_names(decorator: str, options: Iterable[str], names: tuple[str, ...]) -> None:
    for option in options:
        if option not in names:
            _unknown_option(decorator, option, names)


def _unknown_option(decorator: str, option: str, names: tuple[str, ...]) -> NoReturn:
    meant = cure(option, OPTIONS, names) or ""
    all_names = f"There are {', '.join(names)}"
    told = f"{meant}{'' if meant.endswith('?') else '.'} {all_names}" if meant else all_names
    raise TypeError(f"{decorator} has no option {option!r}: {told}")


def examples_of(examples: Any) -> tuple[Any, ...]:
    if not isinstance(examples, (list, tuple)):
        raise TypeError(f"examples={examples!r}: must be a list of inputs")
    return tuple(examples)


def replicas_of(value: Any) -> int | tuple[int, int]:
    if not isinstance(value, tuple):
        return positive("replicas", value)
    if len(value) != 2 or any(not isinstance(bound, int) or isinstance(bound, bool) for bound in value):
        raise ValueError(f"replicas={value!r}: must be an integer from 1, or two, such as (0, 4)")
    least, most = value
    if not 0 <= least <= most or most < 1:
        raise ValueError(f"replicas={value!r}: the first must be from 0, the second from 1 and not below the first")
    return least, most


def positive(name: str, value: Any, most: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
        raise ValueError(f"{name}={value!r}: must be an integer from 1" + ("" if most is None else f" to {most}"))
    return value


def max_delay_ms(delay: Any) -> int | None:
    if delay is None or (delay == 0 and not isinstance(delay, bool)):
        return None
    millis = timeout_ms(delay, "max_delay")
    if millis > _MAX_DELAY_MS:
        raise ValueError(f"max_delay={delay!r}: must be at most {_MAX_DELAY_MS // 1000} seconds")
    return millis


def size_of(name: str, size: str | int | None) -> str | None:
    if isinstance(size, str) and re.fullmatch(r"none|[1-9]\d{0,11}(B|KiB|MiB|GiB)", size):
        return size
    if size is not None and not isinstance(size, int):
        raise ValueError(f'{name}={size!r}: write "512MiB", "4GiB", "none" or a number of bytes')
    return None if size is None else f"{positive(name, size)}B"


def device_of(device: Any) -> str | None:
    if device is not None and not (isinstance(device, str) and device):
        raise TypeError(f'device={device!r}: write a text such as "cuda:0"')
    return device


_MAX_DEVICES = 1024


def devices_of(devices: Any, device: Any, replicas: int | tuple[int, int]) -> str | list[str] | None:
    """`"auto"`, or the names of devices with an equal number of replicas on each. 1 replica is one on each."""
    found: str | list[str] | None
    if devices is None or devices == "auto":
        found = devices
    elif isinstance(devices, (list, tuple)) and 1 <= len(devices) <= _MAX_DEVICES and all(map(device_of, devices)):
        found = list(devices)
    else:
        raise ValueError(f'devices={devices!r}: write "auto" or a list such as ["cuda:0", "cuda:1"]')
    if found is not None and device is not None:
        raise ValueError(f"devices={devices!r} gives each replica its device: remove device={device!r}")
    most = replicas[1] if isinstance(replicas, tuple) else replicas
    if isinstance(found, list) and most > 1 and most % len(found):
        raise ValueError(f"replicas={replicas!r} on {len(found)} devices {found}: write a multiple of {len(found)}")
    return found


def variables_of(env: Any, replicas: int | tuple[int, int]) -> dict[str, str] | list[dict[str, str]]:
    """Variables of all replicas; a list has those of each."""
    if isinstance(env, (list, tuple)):
        each = [_variables(own) for own in env]
        most = replicas[1] if isinstance(replicas, tuple) else replicas
        if most > 1 and most != len(each):
            raise ValueError(f"env=[…]: {len(each)} sets of variables for replicas={replicas!r}: write one for each")
        return each
    return {} if env is None else _variables(env)


def _variables(own: Any) -> dict[str, str]:
    cure = 'write names and texts such as {"OMP_NUM_THREADS": "4"}, or a list of them'
    if not isinstance(own, Mapping):
        raise TypeError(f"env=… is of type {type(own).__name__}: {cure}")
    for name, value in own.items():
        if not (isinstance(name, str) and name and "=" not in name and isinstance(value, str)) or "\0" in name + value:
            # A value may be a secret.
            raise TypeError(f"env={{{name!r}: …}}: {cure}")
    return dict(own)


_MAX_CORE = 8191


def affinity_of(affinity: Any, replicas: int | tuple[int, int]) -> list[int | list[int]] | None:
    """The cores of each replica: one, or a list of different ones."""
    if affinity is None:
        return None
    each = list(affinity) if isinstance(affinity, (list, tuple)) else []
    sets = [list(own) if isinstance(own, (list, tuple)) else [own] for own in each]
    if not sets or any(not own or not all(map(_is_core, own)) or len(set(own)) < len(own) for own in sets):
        raise ValueError(f"affinity={affinity!r}: write the cores of each replica, such as [[0, 1], [2, 3]] or [0, 1]")
    most = replicas[1] if isinstance(replicas, tuple) else replicas
    if len(sets) > most:
        raise ValueError(f"affinity={affinity!r}: cores for {len(sets)} replicas, and replicas={replicas!r}")
    return [own if isinstance(given, (list, tuple)) else given for own, given in zip(sets, each, strict=True)]


def _is_core(core: Any) -> bool:
    return isinstance(core, int) and not isinstance(core, bool) and 0 <= core <= _MAX_CORE


_MAX_FIELDS = 64
_MAX_FIELD_BYTES = 128


def headers_of(headers: Any) -> tuple[str, ...]:
    names = _names_of("headers", headers, "x-user")
    for name in names:
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ValueError(f"headers: {name!r} is not the name of a header")
    return tuple(name.lower() for name in names)


def query_of(query: Any) -> tuple[str, ...]:
    names = _names_of("query", query, "lang")
    for name in names:
        if re.search(r"[\x00-\x1f\x7f-\x9f]", name):
            raise ValueError(f"query: {name!r} is not the name of a query parameter")
    return names


_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def methods_of(methods: Any) -> tuple[str, ...]:
    if not isinstance(methods, (list, tuple)) or not all(isinstance(method, str) for method in methods):
        raise TypeError(f'methods={methods!r}: must be a list, such as ["GET"]')
    found = tuple(dict.fromkeys(method.upper() for method in methods))
    if not set(found) <= set(_METHODS):
        raise ValueError(f"methods={methods!r}: there are {', '.join(_METHODS)}")
    return found


Task = Literal["chat", "complete", "embed", "rerank", "moderate", "transcribe", "speak", "image"]


def task_of(task: Any) -> str | None:
    tasks = get_args(Task)
    if task is not None and task not in tasks:
        hint = did_you_mean(task, tasks) if isinstance(task, str) else ""
        raise ValueError(f"openai={task!r}{hint}; there are {', '.join(tasks)}")
    return task if task is None else str(task)


def aliases_of(aliases: Any, task: str | None) -> tuple[str, ...]:
    if not isinstance(aliases, (list, tuple)) or not all(isinstance(alias, str) for alias in aliases):
        raise TypeError(f'aliases={aliases!r}: must be a list of names, such as ["gpt-4o-mini"]')
    if not all(alias and alias.isprintable() for alias in aliases):
        raise ValueError(f"aliases={aliases!r}: a name has one printable character or more")
    if aliases and task is None:
        raise ValueError(f"aliases={aliases!r}: these are names of a model, which `openai` makes of it")
    return tuple(dict.fromkeys(aliases))


def tool_of(mcp: Any) -> bool:
    if not isinstance(mcp, bool):
        raise TypeError(f"mcp={mcp!r}: must be True or False")
    return mcp


def _names_of(option: str, names: Any, example: str) -> tuple[str, ...]:
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) and name for name in names):
        raise TypeError(f"{option}={names!r}: must be a list of names, such as [{example!r}]")
    if len(names) > _MAX_FIELDS:
        raise ValueError(f"{option}: at most {_MAX_FIELDS} names")
    for name in names:
        if len(name.encode(errors="replace")) > _MAX_FIELD_BYTES:
            raise ValueError(f"{option}: the name {name[:32]!r}… has more than {_MAX_FIELD_BYTES} bytes")
    if len({name.lower() if option == "headers" else name for name in names}) < len(names):
        raise ValueError(f"{option}={names!r}: must be different names")
    return tuple(names)


_PARAMETER = re.compile(r"(?<=/)\{([A-Za-z_][A-Za-z0-9_]*)\}(?=/|$)")


def route_path(route: str) -> str:
    if not isinstance(route, str):
        raise TypeError(f"route={route!r}: write a path such as '/classify'")
    path = route if route.startswith("/") else "/" + route
    if path.endswith("/") or not path.isprintable() or any(char in " ?#" for char in path):
        raise ValueError(f"route {route!r}: write a path such as '/classify'{_route_hint(route, path)}")
    names = path_parameters(path)
    if any(brace in _PARAMETER.sub("", path) for brace in "{}") or len(set(names)) < len(names):
        hint = " Its type is the hint of the argument" if ":" in route else ""
        raise ValueError(
            f"route {route!r}: a parameter is a whole segment, each of another name: '/items/{{item_id}}'.{hint}"
        )
    if re.search(r"/<[^/]*>(?=/|$)|/:\w", path):
        raise ValueError(f"route {route!r}: write a parameter as '/items/{{item_id}}'")
    return path


def _route_hint(route: str, path: str) -> str:
    """What to do instead of what such a path was meant to do."""
    method, _, rest = route.partition(" ")
    if path == "/":
        return "; `/` is the index of the node"
    if method.isalpha() and rest.startswith("/"):
        return "; a route has its method in methods=[…], and a call has it in capitals: 'GET /classify'"
    if "?" in path:
        return "; a call has its query parameters in query={…}"
    if path.endswith("/"):
        return ", without `/` at its end"
    return "; urllib.parse.quote() writes other characters" if " " in path or "#" in path else ""


def split_name(name: str) -> tuple[str | None, str]:
    """The name of a route as its method of HTTP, if it begins with one, and its path."""
    method, _, path = name.partition(" ")
    is_method = method.isascii() and method.isalpha() and method.isupper()
    return (method, path) if is_method and path.startswith("/") else (None, name)


def called_name(route: str) -> str:
    """The name of a route that is called: its path, such as `/items`, perhaps with a method: `GET /items`."""
    method, path = split_name(route) if isinstance(route, str) else (None, route)
    return route_path(path) if method is None else f"{method} {route_path(path)}"


def path_parameters(path: str) -> list[str]:
    """The names of the parameters of a path such as `/items/{item_id}`."""
    return _PARAMETER.findall(path)


def takes_path(route: str, path: str) -> bool:
    """Whether a path is one of those of a route with parameters."""
    wanted, given = route.split("/"), path.split("/")
    return len(wanted) == len(given) and all(
        segment == other or (segment.startswith("{") and other != "")
        for segment, other in zip(wanted, given, strict=True)
    )
