"""A server over stdio that speaks an older protocol by hand, and badly where a test wants it: `python ... WAY`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

OBJECT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
GOOD = {"name": "good", "description": "Say it.", "inputSchema": OBJECT, "annotations": {"readOnlyHint": True}}
LISTS: dict[str, list[dict[str, Any]]] = {
    "schemas": [
        GOOD,
        {"name": "broken", "description": "x", "inputSchema": {"type": "object", "properties": {"a": {"type": 7}}}},
        {
            "name": "elsewhere",
            "description": "x",
            "inputSchema": {"type": "object", "properties": {"a": {"$ref": "https://example.org/schema.json"}}},
        },
        {"name": "reserved", "description": "x", "inputSchema": {"type": "object", "properties": {"missing": {}}}},
        {"name": "bare", "inputSchema": {"type": "object"}},
    ],
    "array": [{"name": "array", "description": "Takes an array.", "inputSchema": {"type": "array"}}],
    "names": [
        {**GOOD, "name": "files/read.text"},
        {**GOOD, "name": "files_read_text"},
        {**GOOD, "name": "n" * 80},
        {**GOOD, "name": "n" * 79 + "m"},
        {**GOOD, "name": "good"},
        {**GOOD, "name": "good"},
    ],
}


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def main() -> None:
    way = sys.argv[1]
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(f"{os.getpid()}\n", encoding="utf-8")
    tools = LISTS.get(way, [GOOD])
    for line in sys.stdin:
        message = json.loads(line)
        method, ident = message.get("method"), message.get("id")
        if way == "mute":
            continue
        if way == "dies":
            sys.exit(3)
        if method == "initialize":
            if way == "noisy":
                print("starting up, please wait", flush=True)
            version = message["params"]["protocolVersion"]
            info = {"name": "raw", "version": "1"}
            say(
                {
                    "id": ident,
                    "result": {
                        "protocolVersion": version,
                        "capabilities": {"tools": {"listChanged": True}},
                        "serverInfo": info,
                        "instructions": "Say little.",
                    },
                }
            )
        elif method == "tools/list":
            result: dict[str, Any] = {"tools": tools}
            if way == "endless":
                result["nextCursor"] = "more"
            say({"id": ident, "result": result})
        elif method == "tools/call" and way == "dies-in-call":
            os._exit(1)
        elif method == "tools/call" and way == "nonsense":
            say({"id": ident, "result": {"content": "no list"}})
        elif method == "tools/call" and way == "refuses":
            say({"id": ident, "error": {"code": -32602, "message": "I will not."}})
        elif method == "tools/call":
            text = message["params"]["arguments"]["text"]
            if way == "changes":
                tools = [GOOD, {**GOOD, "name": text}]
                say({"method": "notifications/tools/list_changed"})
            say({"id": ident, "result": {"content": [{"type": "text", "text": text}]}})
        elif ident is not None:
            say({"id": ident, "error": {"code": -32601, "message": f"no method {method}"}})


if __name__ == "__main__":
    main()
