"""Generates `tidegate_proto/` from the .proto files: messages, gRPC services and their types.

    python proto/generate.py              writes proto/tidegate_proto/
    python proto/generate.py --out DIR    writes DIR/tidegate_proto/, to compare with

The result depends on the .proto files and on the locked versions of grpcio-tools and mypy-protobuf
alone. protoc derives Python imports from the paths of the .proto files as it sees them, so it is
shown this folder under the name `tidegate_proto`; the files need not lie in one of that name.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PACKAGE = "tidegate_proto"
MESSAGES = ("inference.proto", "kserve_v2.proto", "model_config.proto")
SERVICES = ("inference.proto", "kserve_v2.proto")


def generate(out: Path) -> None:
    """Writes the package's generated files below `out`, and removes those no longer generated.

    Raises:
        FileNotFoundError: a protoc plugin is not installed beside this Python.
        subprocess.CalledProcessError: protoc refused a file; it has said why on stderr.
    """
    with tempfile.TemporaryDirectory() as scratch:
        _protoc(MESSAGES, f"--python_out={scratch}", f"--mypy_out=quiet:{scratch}")
        # Concrete servicers, as they are at run time: a method left out answers UNIMPLEMENTED.
        types = f"--mypy_grpc_out=quiet,generate_concrete_servicer_stubs:{scratch}"
        _protoc(SERVICES, f"--grpc_python_out={scratch}", types)
        # Only now, so that a .proto file with a mistake leaves the package as it was.
        _replace(out / PACKAGE, {file.name: file for file in (Path(scratch) / PACKAGE).iterdir()})


def _replace(package: Path, generated: dict[str, Path]) -> None:
    package.mkdir(parents=True, exist_ok=True)
    for stale in package.glob("*_pb2*.py*"):
        if stale.name not in generated:
            stale.unlink()
    for name, file in generated.items():
        (package / name).write_bytes(file.read_bytes())


def _protoc(files: tuple[str, ...], *outputs: str) -> None:
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        f"--proto_path={PACKAGE}={FOLDER}",
        *(
            f"--plugin={name}={_plugin(name)}"
            for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
        ),
        *outputs,
        *(f"{PACKAGE}/{file}" for file in files),
    ]
    subprocess.run(command, check=True)  # noqa: S603 - every word of it is written here


def _plugin(name: str) -> Path:
    # Not resolved: in a virtual environment the interpreter is a link to one outside it.
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise FileNotFoundError(
            f"{name} is not installed beside {sys.executable}: run this script with the Python of "
            "the project's .venv (`make generate`)"
        )
    return path


def main() -> int:
    """Generates as the command line says; 0 when done, 1 with a sentence on stderr when not."""
    parser = argparse.ArgumentParser(description="Generate tidegate_proto from the .proto files.")
    parser.add_argument(
        "--out",
        type=Path,
        default=FOLDER,
        metavar="DIR",
        help=f"folder to write {PACKAGE}/ into (default: the one of the .proto files)",
    )
    try:
        generate(parser.parse_args().out.resolve())
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        print(f"generate: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
