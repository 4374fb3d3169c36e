"""Planning a build: what it would encode, how large and how long that gets, when it has paid for itself."""

from embedcache.plan.plan import (
    DEFAULT_PROBE_SECONDS,
    DEFAULT_TOKEN_SAMPLE,
    plan_build,
)
from embedcache.plan.probe import Speed
from embedcache.plan.report import CodecBytes, OutputOfPlan, Plan, Range, Tokens
from embedcache.plan.views import ViewOfPlan

__all__ = [
    "DEFAULT_PROBE_SECONDS",
    "DEFAULT_TOKEN_SAMPLE",
    "CodecBytes",
    "OutputOfPlan",
    "Plan",
    "Range",
    "Speed",
    "Tokens",
    "ViewOfPlan",
    "plan_build",
]
