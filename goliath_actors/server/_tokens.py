"""Who may enter: bearer tokens, kept as hashes, each with a principal and what it may do."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, final

import attrs

from goliath_actors.errors import ConfigError

__all__ = [
    "LOCAL",
    "SCOPES",
    "Token",
    "TokenFile",
    "hash_token",
    "make_token",
    "match_token",
    "read_token_file",
    "read_tokens",
]

log = logging.getLogger("goliath_actors.server")

SCOPES: Final = ("read", "chat", "admin")
LOCAL: Final = "local"  # the principal of everybody, where there are no tokens

# A principal's name becomes the front of its conversations' ids, up to a slash.
_PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,63}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_SETTLED = 1.0  # seconds: a file that was changed within them may change again without a new time
_LEAST = 20  # characters of a token: made by `make_token` it has 43


def _scopes(scopes: Iterable[str]) -> frozenset[str]:
    return frozenset(scopes)


@attrs.frozen
class Token:
    """One token, by its hash. `read` sees the principal's own conversations, `chat` asks as well, `admin` sees
    statistics and metrics beside all that. Several tokens may have one principal."""

    principal: str
    scopes: frozenset[str] = attrs.field(converter=_scopes)
    hash: str = attrs.field(repr=False)

    def __attrs_post_init__(self) -> None:
        if not _PRINCIPAL.fullmatch(self.principal):
            raise ConfigError(
                f"{self.principal!r} is no name of a principal: letters, digits and _.@+- , at most 64, "
                "beginning with a letter or a digit"
            )
        unknown = sorted(self.scopes - set(SCOPES))
        if unknown or not self.scopes:
            raise ConfigError(f"scopes of a token are some of {', '.join(SCOPES)}, not {', '.join(unknown) or 'none'}")
        if not _HASH.fullmatch(self.hash):
            raise ConfigError(
                "a token is kept as sha256: and 64 hexadecimal digits; 'goliath-actors token NAME' makes such a line"
            )

    def may(self, scope: str) -> bool:
        """Say whether the token allows what needs `scope`. `chat` includes `read`, `admin` includes both."""
        return scope in self.scopes or "admin" in self.scopes or (scope == "read" and "chat" in self.scopes)


def hash_token(token: str) -> str:
    """Return what is kept of a token. A plain hash is enough for what is random and long, and cheap on each request.

    Raises: `ConfigError` for one that is short enough to be guessed.
    """
    if len(token) < _LEAST:
        raise ConfigError(f"a token needs at least {_LEAST} characters; make_token() makes one")
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def make_token() -> str:
    """Return a new token: 256 random bits as 43 characters."""
    return secrets.token_urlsafe(32)


def match_token(tokens: Sequence[Token], presented: str) -> Token | None:
    """Return the token that this is, or None. Takes as long whichever it is, and whether it is one."""
    digest = f"sha256:{hashlib.sha256(presented.encode('utf-8', 'surrogateescape')).hexdigest()}"
    found: Token | None = None
    for token in tokens:
        if hmac.compare_digest(token.hash, digest):
            found = token
    return found


def read_tokens(text: str, where: str) -> tuple[Token, ...]:
    """Read tokens: a line each, `principal scope[,scope] sha256:…`; blank lines and those that begin with # are none.

    Arguments: `where` the text is from, for errors, which never show a line's content.

    Raises: `ConfigError` with the number of the line that is wrong.
    """
    tokens: list[Token] = []
    for number, line in enumerate(text.splitlines(), 1):
        row = line.strip()
        if not row or row.startswith("#"):
            continue
        words = row.split()
        if len(words) != 3:
            raise ConfigError(f"{where}, line {number}: a token's line is PRINCIPAL SCOPES sha256:HASH")
        try:
            tokens.append(Token(words[0], words[1].split(","), words[2]))
        except ConfigError as error:
            raise ConfigError(f"{where}, line {number}: {error}") from None
    return tuple(tokens)


def read_token_file(path: str) -> tuple[Token, ...]:
    """Read a file of tokens, as `read_tokens`.

    Raises: `ConfigError` for a file that cannot be read, or has no token.
    """
    try:
        found = read_tokens(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise ConfigError(
            f"the token file {path!r} cannot be read ({why}); 'goliath-actors token NAME >> {path}' makes one"
        ) from error
    if not found:
        raise ConfigError(f"the token file {path!r} has no token; 'goliath-actors token NAME' makes one")
    return found


@final
@attrs.define(eq=False)
class TokenFile:
    """A file of tokens, read again whenever it has changed.

    A file that cannot be read, or in which there is no token any more, changes nothing and is logged: it may be just
    being written.
    """

    path: str
    _tokens: tuple[Token, ...] = ()
    # What the file looked like when it was read; None: read it in any case.
    _seen: tuple[int, int, int] | None = None
    _problem: str = ""

    def tokens(self) -> tuple[Token, ...]:
        """Return the tokens that are in the file now. Costs a look at the file's date; blocks no longer than that."""
        try:
            status = Path(self.path).stat()
            seen, changed = (status.st_mtime_ns, status.st_size, status.st_ino), status.st_mtime
        except OSError:
            seen, changed = (0, 0, 0), 0.0
        if seen == self._seen:
            return self._tokens
        problem = ""
        try:
            self._tokens = read_token_file(self.path)
        except ConfigError as error:
            problem = str(error)
            if problem != self._problem:
                log.error("%s; those who could enter before still can", problem)
        self._problem = problem
        self._seen = seen if abs(time.time() - changed) > _SETTLED else None
        return self._tokens
