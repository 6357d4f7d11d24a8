"""The pool: what is kept, what is closed, and that nothing is lost whenever a request is cancelled."""

from __future__ import annotations

import gc
import ssl

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from goliath_actors.models._endpoint import Endpoint
from goliath_actors.models._http import httpx
from goliath_actors.models._pool import Pool, PoolStatistics, StaleConnection
from goliath_actors.models._socket import Socket

from ._provider_server import ProviderServer, Script, chunked, head, provider

OK = Script([head(length=2) + b"ok"])


def request(server: ProviderServer, timeout: float = 5.0) -> httpx.Request:
    return httpx.Request("POST", server.url, content=b"{}", extensions={"timeout": {"connect": timeout}})


async def fetch(pool: Pool, server: ProviderServer) -> bytes:
    response = await pool.handle_async_request(request(server))
    try:
        return await response.aread()
    finally:
        await response.aclose()


async def settled(server: ProviderServer, count: int) -> None:
    """Wait until the server has noticed that all but `count` connections are closed."""
    with trio.fail_after(5):
        while server.open != count:
            await wait_all_tasks_blocked(0.001)


async def test_one_connection_serves_requests_that_follow_each_other() -> None:
    pool = Pool()
    async with provider(OK) as server:
        for _ in range(3):
            assert await fetch(pool, server) == b"ok"
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=1, opened=1, reused=2)
        assert [seen.connection for seen in server.seen] == [0, 0, 0]
        assert repr(pool) == "<Pool 0 in flight, 1 idle, 1 opened, 2 reused>"
        await pool.aclose()
        await settled(server, 0)


async def test_the_connection_used_last_is_used_next() -> None:
    pool = Pool()
    async with provider(OK) as server:
        first = await pool.handle_async_request(request(server))
        second = await pool.handle_async_request(request(server))
        for response in (first, second):
            await response.aread()
            await response.aclose()
        assert await fetch(pool, server) == b"ok"
        assert [seen.connection for seen in server.seen] == [0, 1, 1]
        await pool.aclose()


async def test_five_hundred_requests_at_once_are_all_answered_and_none_is_left_counted() -> None:
    pool, gate, answers = Pool(), trio.Event(), []
    async with provider(Script([head(length=2) + b"ok"], gate=gate)) as server:

        async def one() -> None:
            answers.append(await fetch(pool, server))

        async with trio.open_nursery() as nursery:
            for _ in range(500):
                nursery.start_soon(one)
            with trio.fail_after(30):
                while len(server.seen) < 500:
                    await wait_all_tasks_blocked(0.001)
            assert pool.statistics() == PoolStatistics(in_flight=500, idle=0, opened=500, reused=0)
            gate.set()
        assert answers == [b"ok"] * 500
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=64, opened=500, reused=0)
        await settled(server, 64)
        await pool.aclose()
        await settled(server, 0)


class CancelAt(trio.abc.Instrument):
    """Cancels `scope` when `task` has run `steps` times, that is, while it waits at its checkpoint of that number."""

    def __init__(self, task: trio.lowlevel.Task, steps: int, scope: trio.CancelScope) -> None:
        self._task, self._left, self._scope = task, steps, scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


@pytest.mark.parametrize("kept", [False, True])
async def test_a_request_cancelled_at_any_checkpoint_gives_its_place_back(kept: bool) -> None:
    body = chunked(b"one", b"two", b"three")
    async with provider(Script([body[:20], body[20:100], body[100:110], body[110:]])) as server:
        pool = Pool()
        reached: list[str] = []
        for steps in range(1, 200):
            if kept:
                assert await fetch(pool, server) == b"onetwothree"
            else:
                await pool.aclose()
                pool = Pool()
            reached.append("begun")
            with trio.CancelScope() as scope:
                instrument = CancelAt(trio.lowlevel.current_task(), steps, scope)
                trio.lowlevel.add_instrument(instrument)
                try:
                    response = await pool.handle_async_request(request(server))
                    reached[-1] = "answered"
                    try:
                        await response.aread()
                        reached[-1] = "read"
                    finally:
                        await response.aclose()
                finally:
                    trio.lowlevel.remove_instrument(instrument)
            assert pool.statistics().in_flight == 0
            await settled(server, pool.statistics().idle)
            if not scope.cancel_called:
                break
        else:
            raise AssertionError("there is no end to its checkpoints")
        # Every stage was cut off at least twice.
        assert all(reached.count(stage) >= 2 for stage in ("begun", "answered", "read"))
        assert reached == sorted(reached, key=["begun", "answered", "read"].index)
        assert await fetch(pool, server) == b"onetwothree"
        await pool.aclose()
        await settled(server, 0)


async def test_a_body_that_was_not_read_to_its_end_costs_the_connection() -> None:
    pool = Pool()
    async with provider(OK) as server:
        response = await pool.handle_async_request(request(server))
        await response.aclose()
        await response.aclose()
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=0, opened=1, reused=0)
        await settled(server, 0)


async def test_a_restarted_server_is_noticed_before_a_kept_connection_is_used() -> None:
    pool = Pool()
    async with provider(OK) as server:
        responses = [await pool.handle_async_request(request(server)) for _ in range(3)]
        for response in responses:
            await response.aread()
            await response.aclose()
        assert pool.statistics().idle == 3
        server.drop_connections()
        await settled(server, 0)
        assert await fetch(pool, server) == b"ok"
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=1, opened=4, reused=0)
        await pool.aclose()


async def test_one_stale_connection_makes_the_others_of_its_age_suspect() -> None:
    pool = Pool()
    async with provider(OK, OK, Script([], "close"), OK) as server:
        responses = [await pool.handle_async_request(request(server)) for _ in range(2)]
        for response in responses:
            await response.aread()
            await response.aclose()
        with pytest.raises(StaleConnection, match="closed the kept connection"):
            await fetch(pool, server)
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=0, opened=2, reused=1)
        assert await fetch(pool, server) == b"ok"
        assert await fetch(pool, server) == b"ok"
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=1, opened=3, reused=2)
        await pool.aclose()


async def test_after_a_stale_connection_the_next_request_opens_one_though_another_was_given_back_meanwhile() -> None:
    pool = Pool()
    async with provider(OK, OK, Script([], "close"), OK) as server:
        first = await pool.handle_async_request(request(server))
        await fetch(pool, server)
        with pytest.raises(StaleConnection):
            await fetch(pool, server)
        await first.aread()
        await first.aclose()
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=1, opened=2, reused=1)
        await fetch(pool, server)
        await fetch(pool, server)
        assert [seen.connection for seen in server.seen] == [0, 1, 1, 2, 2]
        await pool.aclose()


async def test_closing_is_done_also_where_everything_is_cancelled() -> None:
    pool = Pool()
    async with provider(OK) as server:
        responses = [await pool.handle_async_request(request(server)) for _ in range(4)]
        for response in responses[1:]:
            await response.aread()
            await response.aclose()
        assert pool.statistics() == PoolStatistics(in_flight=1, idle=3, opened=4, reused=0)
        with trio.CancelScope() as scope:
            scope.cancel()
            await responses[0].aclose()
            assert pool.statistics() == PoolStatistics(in_flight=0, idle=3, opened=4, reused=0)
            await pool.aclose()
        assert scope.cancelled_caught
        await settled(server, 0)


async def test_a_kept_connection_that_had_begun_to_answer_is_not_stale() -> None:
    pool = Pool()
    async with provider(OK, Script([b"HTTP/1.1 200 OK\r\ncontent-"], "close")) as server:
        await fetch(pool, server)
        with pytest.raises(httpx.RemoteProtocolError) as caught:
            await fetch(pool, server)
        assert not isinstance(caught.value, StaleConnection)


async def test_a_new_connection_that_is_closed_without_an_answer_is_not_stale() -> None:
    pool = Pool()
    async with provider(Script([], "close")) as server:
        with pytest.raises(httpx.RemoteProtocolError) as caught:
            await fetch(pool, server)
        assert not isinstance(caught.value, StaleConnection)
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=0, opened=1, reused=0)


async def test_an_idle_connection_is_kept_for_its_time_and_then_closed(autojump_clock: MockClock) -> None:
    pool = Pool(keepalive=10)
    async with provider(OK) as server:
        await fetch(pool, server)
        await trio.sleep(9.9)
        await fetch(pool, server)
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=1, opened=1, reused=1)
        await trio.sleep(10)
        await fetch(pool, server)
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=1, opened=2, reused=1)
        await settled(server, 1)
        await pool.aclose()


async def test_no_more_idle_connections_are_kept_than_allowed_and_the_oldest_goes_first() -> None:
    pool = Pool(max_idle=2)
    async with provider(OK) as server:
        responses = [await pool.handle_async_request(request(server)) for _ in range(3)]
        for response in responses:
            await response.aread()
            await response.aclose()
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=2, opened=3, reused=0)
        responses = [await pool.handle_async_request(request(server)) for _ in range(2)]
        assert [seen.connection for seen in server.seen] == [0, 1, 2, 2, 1]
        for response in responses:
            await response.aclose()
        await pool.aclose()


async def test_a_closed_pool_closes_what_is_in_flight_when_it_ends_and_takes_no_more() -> None:
    pool = Pool()
    async with provider(OK) as server:
        response = await pool.handle_async_request(request(server))
        await pool.aclose()
        assert await response.aread() == b"ok"
        await response.aclose()
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=0, opened=1, reused=0)
        await settled(server, 0)
        with pytest.raises(RuntimeError, match="closed"):
            await fetch(pool, server)


async def test_the_pool_serves_the_client_library_as_a_transport() -> None:
    pool = Pool()
    async with provider(OK) as server:
        async with httpx.AsyncClient(transport=pool) as client:
            for _ in range(2):
                response = await client.post(server.url, content=b"{}")
                assert (response.status_code, response.text) == (200, "ok")
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=0, opened=1, reused=1)


async def test_limits_of_the_client_library_are_kept_in_seconds(autojump_clock: MockClock) -> None:
    async with provider(Script([], "open")) as server:
        async with httpx.AsyncClient(transport=Pool(), timeout=3) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(server.url, content=b"{}")
    assert trio.current_time() == pytest.approx(3)


def test_each_loop_has_a_pool_of_its_own_and_takes_it_along_when_it_ends() -> None:
    endpoint = Endpoint()
    sockets: list[Socket] = []

    async def once() -> None:
        async with provider(OK) as server:
            response = await endpoint.post(httpx.URL(server.url), {}, b"{}", 5)
            assert await response.read() == b"ok"
            await response.aclose()
            assert endpoint.pool.statistics() == PoolStatistics(in_flight=0, idle=1, opened=1, reused=0)
            [stack] = endpoint.pool._idle._stacks.values()
            sockets.extend(kept.socket for kept in stack)

    trio.run(once)
    trio.run(once)
    # Nobody called aclose. A socket left to the garbage collector would warn, and warnings are errors here.
    gc.collect()
    assert [kept.socket.fileno() for kept in sockets] == [-1, -1]
    assert len(endpoint._pools) == 0


async def test_closing_an_endpoint_leaves_it_usable() -> None:
    endpoint = Endpoint()
    async with provider(OK) as server:
        for _ in range(2):
            response = await endpoint.post(httpx.URL(server.url), {}, b"{}", 5)
            assert await response.read() == b"ok"
            await response.aclose()
            await endpoint.aclose()
        await endpoint.aclose()
        assert [seen.connection for seen in server.seen] == [0, 1]
        await settled(server, 0)


async def test_an_answer_that_nobody_asked_for_does_not_become_that_of_the_next_request() -> None:
    pool = Pool()
    async with provider(Script([head(length=2) + b"ok" + head(length=4) + b"evil"]), OK) as server:
        assert await fetch(pool, server) == b"ok"
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=0, opened=1, reused=0)
        assert await fetch(pool, server) == b"ok"
        await pool.aclose()


async def test_what_came_before_the_body_stopped_being_http_is_given_out_first() -> None:
    endpoint = Endpoint()
    body = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\nnonsense\r\n"
    async with provider(Script([body], "open")) as server:
        answer = await endpoint.post(httpx.URL(server.url), {}, b"{}", 5)
        assert await answer.read() == b"ok"
        with pytest.raises(httpx.RemoteProtocolError):
            await answer.read()
        await answer.aclose()
        assert endpoint.pool.statistics() == PoolStatistics(in_flight=0, idle=0, opened=1, reused=0)


async def test_a_server_that_changes_the_protocol_is_refused() -> None:
    async with provider(Script([b"HTTP/1.1 101 Switching Protocols\r\nupgrade: other\r\n\r\n"])) as server:
        with pytest.raises(httpx.RemoteProtocolError, match="pending proposal"):
            await fetch(Pool(), server)


async def test_heads_of_requests_differ_where_headers_differ_and_few_are_kept() -> None:
    endpoint = Endpoint()
    async with provider(OK) as server:
        url = httpx.URL(server.url)
        for number in [*range(40), 39]:
            answer = await endpoint.post(url, {"x-trace": str(number)}, b"{}", 5)
            assert await answer.read() == b"ok"
            await answer.aclose()
        assert [seen.headers["x-trace"] for seen in server.seen] == [str(number) for number in [*range(40), 39]]
        assert {seen.headers["content-length"] for seen in server.seen} == {"2"}
        assert len(endpoint._heads) <= 16
        await endpoint.aclose()


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\nb", "\0", "ü"])
async def test_a_header_that_no_request_may_hold_is_refused_before_anything_is_sent(value: str) -> None:
    endpoint = Endpoint()
    async with provider(OK) as server:
        with pytest.raises(httpx.LocalProtocolError):
            await endpoint.post(httpx.URL(server.url), {"x-trace": value}, b"{}", 5)
        assert (server.connections, server.seen) == (0, [])


trustme = pytest.importorskip("trustme")


async def serve_tls(stream: trio.SocketStream, context: ssl.SSLContext) -> None:
    async with trio.SSLStream(stream, context, server_side=True, https_compatible=True) as secured:
        try:
            while data := await secured.receive_some(65536):
                if data.endswith(b"{}"):
                    await secured.send_all(head(length=2) + b"ok")
        except trio.BrokenResourceError:
            pass  # the client did not trust us, or left


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    ours, theirs = ssl.create_default_context(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.configure_trust(ours)
    authority.issue_cert("localhost").configure_cert(theirs)
    return ours, theirs


async def test_a_kept_tls_connection_is_used_again_and_an_untrusted_one_is_refused() -> None:
    ours, theirs = contexts()
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, lambda stream: serve_tls(stream, theirs), [listener])
        pool = Pool(context=ours)
        for _ in range(2):
            response = await pool.handle_async_request(
                httpx.Request("POST", f"https://localhost:{port}/", content=b"{}")
            )
            assert await response.aread() == b"ok"
            await response.aclose()
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=1, opened=1, reused=1)
        await pool.aclose()
        stranger = Pool(context=ssl.create_default_context())
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            await stranger.handle_async_request(httpx.Request("POST", f"https://localhost:{port}/", content=b"{}"))
        assert stranger.statistics() == PoolStatistics(in_flight=0, idle=0, opened=0, reused=0)
        nursery.cancel_scope.cancel()


async def test_a_server_that_never_shakes_hands_runs_into_the_connect_timeout(autojump_clock: MockClock) -> None:
    async with provider(OK) as server:
        pool = Pool(context=ssl.create_default_context())
        silent = httpx.Request(
            "POST", f"https://127.0.0.1:{server.port}/", content=b"{}", extensions={"timeout": {"connect": 4.0}}
        )
        with pytest.raises(httpx.ConnectTimeout, match="no connection within 4 s"):
            await pool.handle_async_request(silent)
        assert trio.current_time() == pytest.approx(4)
        await settled(server, 0)
        assert pool.statistics() == PoolStatistics(in_flight=0, idle=0, opened=0, reused=0)
