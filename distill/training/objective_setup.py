"""What a run minimises, put together: the loss, and what it is to see of the inside of the models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from distill.classification.outputs import ClassOutputs
from distill.errors import ConfigError
from distill.losses.registry import get_loss
from distill.reaugkd.soft_labels import base_teacher
from distill.training.hidden_states import HiddenStates
from distill.training.inside import Inside
from distill.training.objective import Distillation
from distill.training.token_embeddings import TokenEmbeddings
from embedcache.cache import Cache, CachedTeacher
from embedcache.errors import TeacherError
from embedcache.teacher.load import Teacher, load_by_contract

if TYPE_CHECKING:
    import torch

    from distill.config.models import RunConfig
    from distill.data.dataset import DistillDataset
    from distill.training.student import StudentParts


def make_objective(
    cache: Cache,
    config: RunConfig,
    dataset: DistillDataset,
    student: StudentParts,
    live_teacher: Callable[[], Teacher],
    device: torch.device,
) -> Distillation:
    """Return what is minimised: the loss with all that it is to see.

    Args:
        cache: the cache.
        config: the resolved configuration.
        dataset: what is trained on.
        student: the student.
        live_teacher: loads the teacher itself; called only for a loss that looks at its layers, and it is
            theirs from then on.
        device: where the student is trained.

    Raises:
        InputError: if the loss looks at the teacher's token embeddings, and the cache does not hold them.
        TeacherError, ContractMismatchError: if it looks at the teacher's layers, and it cannot be loaded.
        ConfigError, StudentError: if the student does not fit what is looked at.
    """
    loss, settings, inside = get_loss(config.loss.name), config.loss.settings, list[Inside]()
    widths: tuple[Sequence[int], Sequence[int]] = ((), ())
    if loss.needs_token_table(settings):
        table = cache.token_table(dataset.teacher)
        over, embeddings = settings.get("over", "tokens"), settings.get("embeddings", "block")
        inside.append(TokenEmbeddings(student.model, table, over, embeddings))
    if loss.needs_live_teacher(settings):
        which: Literal["last", "spread"] = "spread" if loss.inside == "layers" else "last"
        scaled = settings.get("scale") == "relative"
        layers = HiddenStates(student.model, live_teacher(), which, device, scaled=scaled)
        inside.append(layers)
        widths = layers.widths
    made = loss.make(
        settings,
        dimension=dataset.targets.dimension,
        student_widths=widths[0],
        teacher_widths=widths[1],
        seed=config.seed,
    )
    if dataset.soft is not None and student.classifier is not None:
        outputs = ClassOutputs(student.classifier, dataset.soft)
        # Optimised, moved and saved as what a loss learns is.
        made.add_module("outputs", outputs)
        inside.append(outputs)
    return Distillation(made, dataset, inside)


def load_live_teacher(cache: Cache, teacher: CachedTeacher, source: str | None = None) -> Teacher:
    """Load the teacher itself, and make sure it is the one the cache holds vectors of.

    Args:
        cache: the cache.
        teacher: the cached teacher; of one that was derived, the model it was derived from is meant.
        source: alias, hub id or folder to load from; default: as it was built.

    Raises:
        TeacherError: if it cannot be found or loaded.
        ContractMismatchError: if it is another teacher now; it names the fields that differ.
    """
    teacher = base_teacher(cache, teacher)
    if teacher.contract.is_served:
        raise TeacherError(
            f"teacher {teacher.name!r} is served, and its weights are not here: name another student, "
            "such as minilm-l3, and a loss on vectors"
        )
    noted = cache.model_source(teacher)
    try:
        return load_by_contract(
            source or noted,
            teacher.contract,
            name=teacher.name,
            remedy="say where that one is with --teacher-model",
        )
    except TeacherError as error:
        if source is not None:
            raise
        raise TeacherError(
            f"the run needs the weights of teacher {teacher.name!r} (its student is made from them, or its "
            f"loss looks at the teacher's layers), and the cache names its model {noted!r}, which cannot be "
            f"loaded on this machine: say where it is with --teacher-model FOLDER ({error})"
        ) from error


def refuse_online(config: RunConfig, dataset: DistillDataset) -> None:
    """Refuse a loss that looks at layers without the live teacher, and the live teacher without such a loss.

    Raises:
        ConfigError: if one is there without the other, or the targets are not one teacher's own vectors.
    """
    name, settings = config.loss.name, config.loss.settings
    loss = get_loss(name)
    live = loss.needs_live_teacher(settings)
    if live and not config.online:
        raise ConfigError(
            f"loss {name}: it looks at the teacher's layers, so the teacher itself is run at every step: say "
            "--teacher online (or online:NAME), or choose another loss"
        )
    if config.online and not live:
        raise ConfigError(
            f"teacher {config.teacher!r}: the loss {name}, as it is set, needs the cached vectors only; name "
            "the teacher without 'online', or choose lmx-kd or simtde with loss.hidden above 0"
        )
    looks_inside = live or loss.needs_token_table(settings) or loss.inside == "classes"
    if looks_inside and dataset.targets.combination:
        raise ConfigError(
            f"loss {name}: it looks inside one teacher, found targets that are put together or projected; "
            "name one --teacher and leave target_dim out"
        )
