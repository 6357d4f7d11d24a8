"""`module:agent` to an Agent, or another value of a module, with a clear word about whatever is wrong with it."""

from __future__ import annotations

import importlib
import sys
from typing import Any, TypeVar

from goliath_actors import Agent
from goliath_actors.errors import ConfigError

__all__ = ["load_agent", "load_value"]

T = TypeVar("T")


def load_agent(spec: str, folder: str) -> Agent[Any]:
    """Import `module` from `folder` or from what is installed, and return its attribute `agent` (dots go deeper).

    Raises: `ConfigError` if the form, the module, the attribute or its type is wrong, or if the module's own code
    raises, which is then the `__cause__`.
    """
    return load_value(spec, folder, Agent, "agent")


def load_value(spec: str, folder: str, kind: type[T], word: str) -> T:
    """Return what `load_agent` does, for a value of type `kind`, which people call a `word`.

    Raises: `ConfigError` as `load_agent` does.
    """
    module_name, colon, path = spec.partition(":")
    if not colon or not module_name.strip() or not path.strip():
        raise ConfigError(
            f"{spec!r} names no {word}; write module:{word}, such as myapp.bot:{word}"
            + ("; an ask comes from standard input" if " " in spec.strip() else "")
        )
    if "/" in module_name or "\\" in module_name or module_name.startswith(".") or module_name.endswith(".py"):
        raise ConfigError(_not_a_file(spec, module_name, path))
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does; an installed command does not
    module = _import(module_name)
    value: Any = module
    for part in path.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise ConfigError(f"module {module_name!r} has no {path!r}{_suggest(module, kind)}") from None
    if not isinstance(value, kind):
        made = "; call it in the module and name what it returns" if callable(value) else ""
        raise ConfigError(f"{spec} is of type {type(value).__name__}, not {_a(kind)}{made}{_suggest(module, kind)}")
    return value


def _not_a_file(spec: str, file: str, path: str) -> str:
    parts = [part for part in file.replace("\\", "/").removesuffix(".py").split("/") if part not in ("", ".")]
    if file.startswith(("/", "~")) or ".." in parts:
        parts, where = parts[-1:], "go to its folder and "
    else:
        where = ""
    name = ".".join(parts).strip(".") or "module"
    return f"{spec!r} names a file; {where}write {name}:{path}"


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise ConfigError(
                f"there is no module {missing!r} in this folder or among the installed packages; "
                "go to the folder that holds it, or install it"
            ) from error
        raise ConfigError(f"module {name!r} imports {missing!r}, which is not installed") from error
    except SystemExit as error:
        raise ConfigError(
            f"module {name!r} ends the program when it is imported; put that under `if __name__ == '__main__':`"
        ) from error
    except Exception as error:  # what the application's own module raises, whatever it is
        raise ConfigError(
            f"module {name!r} cannot be imported: {type(error).__name__}: {error} (--traceback shows where)"
        ) from error


def _a(kind: type) -> str:
    return f"a{'n' * kind.__name__.startswith('A')} {kind.__name__}"


def _suggest(module: Any, kind: type) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, kind)]
    word = kind.__name__
    return f" ({word.lower()}s in it: {', '.join(names)})" if names else f" (there is no {word} in it)"
