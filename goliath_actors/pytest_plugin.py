"""pytest fixtures: a runtime on a mock clock. Loaded by pytest through its entry point; needs `pytest-trio`.

Uses only the public API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import trio
    from trio.testing import MockClock

    from goliath_actors import Agent, Runtime


class _WithoutTrio:
    """What `start_runtime` needs, where nobody brings it: says what to install instead of "fixture not found"."""

    @pytest.fixture
    def autojump_clock(self) -> None:
        raise pytest.UsageError("goliath_actors' fixtures and async tests need pytest-trio: pip install pytest-trio")


def pytest_configure(config: pytest.Config) -> None:
    plugins = config.pluginmanager.list_name_plugin()
    if not any(getattr(plugin, "__name__", "").startswith("pytest_trio") for _, plugin in plugins):
        config.pluginmanager.register(_WithoutTrio())


@pytest.fixture
async def start_runtime(autojump_clock: MockClock, nursery: trio.Nursery) -> Callable[..., Awaitable[Runtime]]:
    """Return `await start_runtime(agent, ..., **options)`: a runtime on a clock that jumps over every wait.

    Options are those of `open_runtime`. What still runs when the test ends is aborted, its observers told. The clock
    does not see threads: with plain (not async) tools or a file store, open a runtime on the real clock instead.
    """
    from goliath_actors import serve_runtime

    async def start(*agents: Agent[Any], **options: Any) -> Runtime:
        async def serve(task_status: trio.TaskStatus[Runtime]) -> None:
            await serve_runtime(*agents, task_status=task_status, **options)

        runtime: Runtime = await nursery.start(serve)
        return runtime

    return start
