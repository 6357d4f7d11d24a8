"""What holds for every test: hypothesis measures no times, since a busy machine would fail what is right; and Ctrl-C is
heard, also by the programs that tests start, which inherit it if a shell in the background has it ignored."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
