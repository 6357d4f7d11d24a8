"""What holds for every test: hypothesis measures no times, since a busy machine would fail what is right."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
