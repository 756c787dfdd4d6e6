"""What every test shares: a fixed random seed per Hypothesis run, and few torch threads."""

from __future__ import annotations

import os

from hypothesis import settings

# Small models are faster on few threads, and equal thread counts make runs repeatable.
os.environ.setdefault("OMP_NUM_THREADS", "2")

settings.register_profile("gate", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))
