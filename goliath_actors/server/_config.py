"""What a server may be told: addresses, limits, time-outs, who may enter."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import attrs

from goliath_actors._numbers import check_count, check_seconds
from goliath_actors.errors import ConfigError

from ._tokens import Token, read_token_file

__all__ = ["LOOPBACK_HOSTS", "ServerConfig"]

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")

_ORIGIN = re.compile(r"https?://[^/\s?#]+")


def _strings(values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):  # its letters would be taken one by one
        raise ConfigError(f"allowed_hosts and cors_origins are lists; put {values!r} in brackets")
    return tuple(values)


def _tokens(tokens: Iterable[Token]) -> tuple[Token, ...]:
    found = tuple(tokens)
    if not all(isinstance(token, Token) for token in found):  # never shown: it may be a secret
        raise ConfigError("tokens=... takes a list of Token, such as read_token_file returns, and no text")
    return found


@attrs.frozen
class ServerConfig:
    """How a server behaves. Durations are in seconds, sizes in bytes.

    Fields:
      host, port: where it listens; port 0 takes any free one.
      tokens: who may enter. Without tokens everybody may, so only loopback addresses are taken, unless `insecure`.
      token_file: a file with more of them, which is read again whenever it has changed.
      allowed_hosts: names beside the loopback ones that a request's Host header may have while there are no tokens; a
        web page that points a name of its own at this machine is refused (DNS rebinding).
      cors_origins: origins whose pages may call, such as "https://chat.example"; none by default.
      max_connections: at once; more are refused with 503.
      max_body: of a request.
      body_timeout: for a request's body to arrive.
      drain_grace: how long runs may go on after the server was told to end.
      send_timeout: how long a client may leave what it was sent unread or unacknowledged before its connection ends.
      delta_interval: texts of an answer are sent about this often, merged meanwhile; less often, up to every 75 ms,
        while there are so many streams that sending would take more than a third of the time.
      keep_alive: a stream with nothing to say sends a comment this often.
      keep_runs, keep_bytes, keep_seconds: how many runs that are over can be followed from their start, how much their
        events may hold together, and for how long. Of one that is forgotten there is still the end on record.
      confirm: "client" asks the client of the run, but for agents with `approve_all`; "agent" leaves it to the agent.
      confirm_timeout: how long a question to the client stays open; then it counts as a refusal.
      run_timeout: of asks that name none; None for no limit. An ask may name less, never more.
      high_water: the share of `max_waiting`, or of `max_running` where that alone is set, from which `/readyz` says no.
      show_errors: whether clients see texts of errors of the application, its tools and its models, which may hold what
        they should not see. None: only while there are no tokens.
      metrics: whether `/metrics` shows Prometheus what goes on, to tokens with the scope `admin`.
      max_running, mailbox_capacity, max_waiting, finish_timeout, idle_timeout: of the runtime, as in `open_runtime`.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    tokens: tuple[Token, ...] = attrs.field(default=(), converter=_tokens)
    token_file: str | None = attrs.field(default=None, kw_only=True)
    insecure: bool = False
    allowed_hosts: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    cors_origins: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    max_connections: int = 10_000
    max_body: int = 1_000_000
    body_timeout: float = 30.0
    drain_grace: float = 20.0
    send_timeout: float = 15.0
    delta_interval: float = 0.025
    keep_alive: float = 15.0
    keep_runs: int = 256
    keep_seconds: float = 300.0
    keep_bytes: int = attrs.field(default=64_000_000, kw_only=True)
    confirm: Literal["client", "agent"] = "client"
    confirm_timeout: float | None = 300.0
    run_timeout: float | None = None
    high_water: float = 0.8
    show_errors: bool | None = None
    metrics: bool = True
    max_running: int | None = 1000
    mailbox_capacity: int = 16
    max_waiting: int | None = 1000
    finish_timeout: float | None = None
    idle_timeout: float | None = 300.0

    def __attrs_post_init__(self) -> None:
        check_count("port", self.port, 0, none=False)
        if self.port > 65535:
            raise ConfigError(f"port must be between 0 and 65535, not {self.port}")
        for name in ("body_timeout", "send_timeout", "keep_alive", "keep_seconds"):
            check_seconds(name, getattr(self, name), none=False)
        for name in ("drain_grace", "delta_interval"):
            check_seconds(name, getattr(self, name), zero=True, none=False)
        for name in ("confirm_timeout", "run_timeout", "finish_timeout"):
            check_seconds(name, getattr(self, name))
        check_seconds("idle_timeout", self.idle_timeout, zero=True)
        for name, least in (("max_connections", 1), ("max_body", 1), ("keep_runs", 0), ("keep_bytes", 0)):
            check_count(name, getattr(self, name), least, none=False)
        for name, least, none in (("max_running", 1, True), ("mailbox_capacity", 0, False), ("max_waiting", 0, True)):
            check_count(name, getattr(self, name), least, none=none)
        for name in ("insecure", "metrics"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.show_errors not in (True, False, None):
            raise ConfigError(f"show_errors must be True, False or None, not {self.show_errors!r}")
        if not isinstance(self.high_water, int | float) or not 0 < self.high_water <= 1:
            raise ConfigError(f"high_water must be above 0 and at most 1, not {self.high_water!r}")
        if self.confirm not in ("client", "agent"):
            raise ConfigError(f'confirm must be "client" or "agent", not {self.confirm!r}')
        for origin in self.cors_origins:
            if not isinstance(origin, str) or not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"cors_origins must name origins such as https://chat.example, without a path or a wildcard, "
                    f"not {origin!r}"
                )
        if self.token_file is not None:
            read_token_file(self.token_file)
        if self.host not in LOOPBACK_HOSTS and not self.wants_tokens and not self.insecure:
            raise ConfigError(
                f"without tokens everybody who can reach {self.host!r} could ask, read and abort; "
                "configure tokens (--token-file), listen on 127.0.0.1, or say insecure=True (--insecure) to mean it"
            )

    @property
    def wants_tokens(self) -> bool:
        """Whether only those with a token may enter."""
        return bool(self.tokens) or self.token_file is not None

    @property
    def shows_errors(self) -> bool:
        """Whether clients see texts of errors."""
        return not self.wants_tokens if self.show_errors is None else self.show_errors
