"""Loading the models of one evaluation, each under a name of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from distill.errors import DataError
from distill.evaluation.cached_teacher import is_cache_spec
from distill.evaluation.evaluated_model import EvaluatedModel
from distill.evaluation.model import load_model
from distill.evaluation.record import RunTeacher
from distill.evaluation.tasks import Spec
from distill.layout import describe_missing


@dataclass
class Loader:
    """Loads models; a second model of the same name is called by what the caller typed.

    Attributes:
        device: ``auto``, ``cpu``, ``cuda`` ...
        compute_dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``.
        names: the names that are taken.
    """

    device: str
    compute_dtype: str
    names: set[str] = field(default_factory=set)

    def __call__(self, spec: Spec) -> EvaluatedModel:
        """Load the model that ``spec`` names.

        Raises:
            DistillError, EmbedCacheError: as :func:`distill.evaluation.model.load_model`.
        """
        model = self.plain(spec)
        if isinstance(spec, EvaluatedModel):
            return self.named(model)
        return replace(model, name=self.free_name(model.name, spec))

    def plain(self, spec: Spec, teacher: RunTeacher | None = None) -> EvaluatedModel:
        """Load a model, a run's teacher as what it was then; its name is not taken."""
        return load_model(spec, device=self.device, compute_dtype=self.compute_dtype, teacher=teacher)

    def named(self, model: EvaluatedModel) -> EvaluatedModel:
        """Return ``model``, whose name is taken from now on."""
        self.names.add(model.name)
        return model

    def free_name(self, name: str, spec: Spec) -> str:
        """Return ``name``, or what the caller typed where it is taken; it is taken from now on."""
        free = str(spec) if name in self.names else name
        self.names.add(free)
        return free


def require_there(spec: Spec) -> None:
    """Refuse what is no folder and no file and cannot be an alias or a hub id either.

    Raises:
        DataError: naming what is near.
    """
    from embedcache.teacher.resolve import ALIASES

    if isinstance(spec, EvaluatedModel) or is_cache_spec(spec) or Path(spec).expanduser().exists():
        return
    if missing := describe_missing(str(spec)):
        raise DataError(missing)
    base = str(spec).partition("@")[0]
    if base not in ALIASES and (base.count("/") != 1 or base.startswith((".", "/", "~"))):
        raise DataError(
            f"no model {str(spec)!r}: it is no folder or file, no alias (see 'embedcache teachers'), "
            "no hub id like 'org/name' and no 'cache:FOLDER#TEACHER'"
        )
