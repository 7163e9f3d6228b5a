"""`python -m tidegate_engine.artefacts`: builds the artefacts, assembles a model repository."""

import argparse
import sys
from pathlib import Path

from tidegate_engine.artefacts import ArtefactError, assemble, build, default_cache
from tidegate_engine.artefacts.repository import MODELS


def main() -> int:
    """Does what the command line says; returns the exit status."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.model and not arguments.repository:
        parser.error("--model needs --repository: the folder that the model is to go to")
    try:
        cache = arguments.cache or default_cache()
        build(cache, report=lambda line: print(line, file=sys.stderr, flush=True))
        if arguments.repository:
            assemble(arguments.repository, arguments.model, cache=cache, sources=arguments.models)
    except ArtefactError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tidegate_engine.artefacts",
        description="Builds the model artefacts that the cache lacks, checks the others, "
        "and assembles a Triton model repository if one is named.",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="folder of the cache (default: $XDG_CACHE_HOME/tidegate or ~/.cache/tidegate)",
    )
    parser.add_argument(
        "--repository", type=Path, metavar="DIR", help="assemble a model repository here"
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="put this model into the repository; may be given again (default: all)",
    )
    parser.add_argument(
        "--models",
        type=Path,
        default=MODELS,
        metavar="DIR",
        help="folder of the models' sources (default: the checkout's services/triton/models)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
