"""Connections of a `PostgresStore`: where to, how they are opened, and what is said when one fails.

A password is in no repr and no error.
"""

from __future__ import annotations

import re
from typing import Any, final

import attrs
import psycopg
from psycopg import conninfo

from goliath_actors.errors import ConfigError, StoreError

from ._postgres_schema import MIGRATIONS, Connection, migrate

__all__ = ["Link", "Unreachable", "is_broken", "may_be_repeated"]

# Seconds of silence on a connection, and from there between probes, until a server that vanished is given up.
KEEPALIVE = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}


class Unreachable(StoreError):
    """The server cannot be reached, for the moment."""


@final
@attrs.frozen(repr=False)
class Link:
    """Where the database is and what is set on each connection. Times are seconds."""

    parameters: dict[str, Any]
    schema: str
    connect_timeout: float
    statement_timeout: float

    @classmethod
    def to(cls, address: str, schema: str, connect_timeout: float, statement_timeout: float) -> Link:
        """Return the link that a connection string (URI or key=value) leads to. Raises `ConfigError`."""
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise ConfigError(
                f"{schema!r} is no name for a schema: use small letters, digits and underscores, up to 63"
            )
        try:
            parameters = conninfo.conninfo_to_dict(address)
        except psycopg.Error:
            parameters = None
        if parameters is None:  # out here: what libpq says about it may quote the password
            raise ConfigError(
                "the connection string of a PostgresStore cannot be read (it is not shown, it may hold a password); "
                "write postgresql://user@host:5432/name, with %-codes for signs in the password"
            )
        return cls(dict(parameters), schema, connect_timeout, statement_timeout)

    def __repr__(self) -> str:
        return f"<Link to {self.place}>"

    @property
    def place(self) -> str:
        """Host, database and schema, for people."""
        found = self.parameters
        host = found.get("host") or found.get("hostaddr") or found.get("service") or "(default host)"
        port = f":{found['port']}" if found.get("port") else ""
        return f"{host}{port}/{found.get('dbname') or '(default database)'} (schema {self.schema})"

    def open(self) -> Connection:
        """Connect, in a thread, and bring the schema up to date. Raises `StoreError` and its kinds."""
        milliseconds = max(1, round(self.statement_timeout * 1000))
        settings = {
            "application_name": "goliath_actors",
            **KEEPALIVE,
            "tcp_user_timeout": max(1000, round(self.statement_timeout * 1000)),
            **self.parameters,
            # libpq counts in whole seconds, and 1 means 2.
            "connect_timeout": max(2, round(self.connect_timeout)),
        }
        try:
            connection: Connection = psycopg.connect(**settings, autocommit=True)
            try:
                connection.execute(
                    "SELECT set_config('search_path', %s, false), set_config('statement_timeout', %s, false), "
                    "set_config('idle_in_transaction_session_timeout', %s, false), "
                    # What is acknowledged is on disk, whatever the server's default is; a stricter one stays.
                    "set_config('synchronous_commit', "
                    "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
                    "ELSE current_setting('synchronous_commit') END, false)",
                    (self.schema, str(milliseconds), str(milliseconds)),
                )
                migrate(connection, self.schema, MIGRATIONS)
            except Exception:
                connection.close()
                raise
        except psycopg.Error as error:
            raise self.translate(error) from self.cause(error)
        return connection

    def translate(self, error: psycopg.Error) -> StoreError:
        """Return the error to raise for what Postgres said: what happened, and what to do."""
        words = self._words(error)
        if isinstance(error, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable):
            return StoreError(
                f"{self.place} took longer than {self.statement_timeout:g} s ({words}), nothing was changed; look at "
                "its load and at locks, or raise statement_timeout"
            )
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return StoreError(f"{self.place}: {words}; the user needs CREATE on the database, or on this schema")
        if isinstance(error, psycopg.errors.DiskFull):
            return StoreError(f"there is no space left at {self.place}, nothing was changed; make some and try again")
        if isinstance(error, psycopg.OperationalError):
            return Unreachable(f"cannot reach {self.place} ({words}); what was acknowledged before is kept, try again")
        return StoreError(f"{self.place}: {words}")

    def cause(self, error: psycopg.Error) -> psycopg.Error | None:
        """Return `error` to chain to, or None if it says too much."""
        password = self.parameters.get("password")
        return None if password and str(password) in str(error) else error

    def _words(self, error: psycopg.Error) -> str:
        words = " ".join(str(error).split()) or type(error).__name__
        password = self.parameters.get("password")
        return words.replace(str(password), "***") if password else words


def is_broken(error: psycopg.Error, connection: Connection) -> bool:
    """Say whether the connection is lost, and not only the statement."""
    return connection.closed or connection.broken or isinstance(error, psycopg.errors.AdminShutdown)


def may_be_repeated(error: psycopg.Error) -> bool:
    """Say whether the database undid a transaction for the sake of another one: then it is made again."""
    return isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure)
