"""Check the import rules between the parts of MOSAIC.

1. A service imports `mosaic_bus`, shared modules of the services, the event vocabulary (`mosaic_worker.events`) and
   third-party packages, but no other service.
2. A worker imports `mosaic_worker` and its own library, but nothing of the bus, the services or another worker.

It follows that `mosaic_bus` and `mosaic_worker` import no other part, and that shared modules import no service. Code
is parsed, not run. Each breach is printed as file:line, and the exit status is then 1.
"""

import argparse
import ast
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TABLE = Path(__file__).resolve().parent.parent / "services" / "mosaic_services" / "stack" / "services.py"
# Folders of services/mosaic_services that run as processes of their own; the other modules there are shared.
SERVICES = frozenset({"cli", *(row.name for row in runpy.run_path(str(_TABLE))["SERVICES"])})

BUS = "mosaic_bus"
SERVICES_PACKAGE = "mosaic_services"
KIT = "mosaic_worker"
KIT_FOLDER = "kit"
# Services read the events that workers write, so this package of the kit is shared; it needs no third-party package.
VOCABULARY = f"{KIT}.events"
# Virtualenvs, vendored code and build folders are not checked.
SKIPPED_FOLDERS = frozenset({".venv", "venv", "vendor", "build", "dist", "node_modules", "__pycache__"})


@dataclass(frozen=True)
class Rule:
    """What the code of one part may not import, and why; `allowed` is an exception within what is forbidden."""

    forbidden: frozenset[str]
    reason: str
    allowed: str = ""

    def breach(self, module: str) -> str | None:
        """Return the forbidden package that `module` is or belongs to."""
        parts = module.split(".")
        prefixes = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        if self.allowed in prefixes:
            return None
        return next(iter(sorted(prefixes & self.forbidden)), None)


@dataclass(frozen=True)
class Breach:
    """One import that breaks a rule."""

    path: Path
    line: int
    module: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: imports {self.module}: {self.reason}"


@dataclass(frozen=True)
class Part:
    """A folder of Python code, where its packages start, and its rule."""

    folder: Path
    base: Path
    rule: Rule


def find_parts(root: Path) -> Iterator[Part]:
    """Yield every part of the checkout at `root` with its rule."""
    kit = root / "workers" / KIT_FOLDER
    worker_folders = [path for path in sorted((root / "workers").glob("*")) if path.is_dir() and path != kit]
    packages_of = {folder: _packages(folder) for folder in worker_folders}
    all_workers = frozenset().union(*packages_of.values())

    yield Part(
        root / "bus" / BUS,
        root / "bus",
        Rule(all_workers | {SERVICES_PACKAGE, KIT}, "the bus imports no other part"),
    )
    yield from _service_parts(root / "services", all_workers)
    yield Part(
        kit,
        kit,
        Rule(all_workers | {BUS, SERVICES_PACKAGE}, "the worker kit imports no other part"),
    )
    for folder in worker_folders:
        others = all_workers - packages_of[folder]
        reason = f"a worker imports {KIT} and its own library, nothing of the bus, the services or another worker"
        yield Part(folder, folder, Rule(others | {BUS, SERVICES_PACKAGE}, reason))


def _service_parts(base: Path, workers: frozenset[str]) -> Iterator[Part]:
    package = base / SERVICES_PACKAGE
    for path in sorted(package.glob("*")):
        if path.name in SKIPPED_FOLDERS or not (path.is_dir() or path.suffix == ".py"):
            continue
        is_service = path.stem in SERVICES
        others = {f"{SERVICES_PACKAGE}.{name}" for name in SERVICES if name != path.stem}
        reason = (
            f"{path.stem} talks to other services over the bus, and runs workers as processes"
            if is_service
            else "a shared module of the services imports no service and no worker"
        )
        yield Part(path, base, Rule(workers | others | {KIT}, reason, allowed=VOCABULARY))


def _packages(folder: Path) -> frozenset[str]:
    """Return the packages directly in a worker's folder."""
    return frozenset(path.parent.name for path in folder.glob("*/__init__.py") if path.parent.name != "tests")


def check(root: Path) -> list[Breach]:
    """Find all breaches in the checkout at `root`."""
    return [breach for part in find_parts(root) for breach in check_part(part, root)]


def check_part(part: Part, root: Path) -> Iterator[Breach]:
    """Find the breaches in one part; paths are relative to `root`."""
    for path in sorted(_python_files(part.folder)):
        shown = path.relative_to(root)
        tree = ast.parse(path.read_bytes(), filename=str(shown))
        seen: set[tuple[int, str]] = set()
        for line, module in imports(tree, _package_of(path, part.base)):
            forbidden = part.rule.breach(module)
            if forbidden is not None and (line, forbidden) not in seen:
                seen.add((line, forbidden))
                yield Breach(shown, line, forbidden, part.rule.reason)


def _python_files(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
        return
    for path in folder.rglob("*.py"):
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(folder).parts):
            yield path


def _package_of(path: Path, base: Path) -> list[str]:
    """Return the package to which relative imports in `path` refer."""
    return list(path.relative_to(base).parent.parts)


def imports(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """Yield line and full name of every import, including those in functions and by `import_module("…")`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                start = package[: len(package) - level + 1] if level else []
                origin = ".".join([*start, *([module] if module else [])])
                # `from package import name` may import a module, so the full name counts.
                yield from ((node.lineno, f"{origin}.{alias.name}") for alias in names)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if _imports_by_name(function):
                yield node.lineno, name
            case _:
                pass


def _imports_by_name(function: ast.expr) -> bool:
    match function:
        case ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"):
            return True
        case _:
            return False


def main(arguments: list[str] | None = None) -> int:
    """Check a checkout and print the breaches."""
    parser = argparse.ArgumentParser(description="Check the import rules between the parts of MOSAIC.")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    breaches = check(parser.parse_args(arguments).root.resolve())
    for breach in breaches:
        print(breach)
    print(f"imports: {len(breaches)} breach{'' if len(breaches) == 1 else 'es'} of the rules")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
