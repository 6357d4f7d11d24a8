"""pytest fixtures: a runtime on a mock clock. Loaded by pytest through its entry point; needs `pytest-trio`.

Floor 10. Uses only the public API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import trio
    from trio.testing import MockClock

    from goliath_actors import Agent, Runtime


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
