"""The one seam to the HTTP client library: nothing else in the project imports it.

The client is `httpx2`, the maintained continuation of httpx with the same interface. Its addresses, errors and TLS
settings are used everywhere; its requests and connections only where an application brings a client of its own.
"""

from __future__ import annotations

import base64
import functools
import ssl

import httpx2 as httpx

from goliath_actors._version import __version__
from goliath_actors.errors import ConfigError

__all__ = ["USER_AGENT", "httpx", "parse_url", "place", "ssl_context"]

USER_AGENT = f"goliath-actors/{__version__}"


@functools.cache
def ssl_context() -> ssl.SSLContext:
    """Return the process's one TLS context, made when it is first needed.

    Loading the certificate authorities takes 20 to 170 ms, so every pool shares this one. It follows `SSL_CERT_FILE`
    and `SSL_CERT_DIR`; an application with other wishes brings a client of its own (`http=`).
    """
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def parse_url(argument: str, text: str) -> tuple[httpx.URL, str | None]:
    """Return an address given by an application, and the header value for a user and password that stood in it.

    Arguments: `argument`, what the application calls it.

    Raises: `ConfigError`; the message does not repeat the address, since some hold a key.
    """
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError) as error:
        raise ConfigError(f"{argument} is no address; write it like http://127.0.0.1:11434/v1") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{argument} needs a scheme and a host; write it like http://127.0.0.1:11434/v1")
    basic = None
    if url.userinfo:
        pair = f"{url.username}:{url.password}".encode()
        basic = f"Basic {base64.b64encode(pair).decode('ascii')}"
        url = url.copy_with(username=None, password=None)
    return url.copy_with(fragment=None), basic


def place(url: httpx.URL) -> str:
    """Return an address as messages may show it: without user, query and fragment, where keys are."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}{url.path}"
