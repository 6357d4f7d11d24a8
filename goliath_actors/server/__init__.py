"""Conversations over HTTP: a chat backend with event streams, and a page. Needs the extra `web`.

`serve` runs it whole, inside a nursery; `create_app` is the ASGI application alone. Only the public API is used, so
that a backend of your own can be built in the same way.
"""

from goliath_actors.tools import ask_client

from ._app import create_app, recorded
from ._config import ServerConfig
from ._hosted import Visitor
from ._ledger import Ledger
from ._serve import Server, serve, serve_app
from ._tokens import Token, hash_token, make_token, read_token_file, read_tokens

__all__ = [
    "Ledger",
    "Server",
    "ServerConfig",
    "Token",
    "Visitor",
    "ask_client",
    "create_app",
    "hash_token",
    "make_token",
    "read_token_file",
    "read_tokens",
    "recorded",
    "serve",
    "serve_app",
]
