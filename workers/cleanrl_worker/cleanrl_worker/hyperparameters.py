"""Reads a script's arguments from its source: `class Args` for tyro, `add_argument` calls for argparse.

Nothing of the script is run or imported, so this works for scripts whose libraries are not installed, and costs
milliseconds.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from mosaic_worker.metadata import Parameter

__all__ = ["Style", "read_arguments"]

Style = Literal["tyro", "argparse"]
Type = Literal["bool", "int", "float", "str"]
Value = bool | int | float | str | None

_TYPES: dict[str, Type] = {"bool": "bool", "int": "int", "float": "float", "str": "str"}
# CleanRL's comment for fields that its scripts compute from others: setting them has no effect.
_COMPUTED = re.compile(r"(filled|computed) in runtime")
_UNKNOWN = object()
_SUMS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def read_arguments(source: str) -> tuple[Style, tuple[Parameter, ...]]:
    """Read a script's arguments, in their order; raise ValueError if it has none, or is not Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"it is not Python: {error.msg} in line {error.lineno}") from None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            return "tyro", tuple(_fields(node, source.splitlines()))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_add_argument(node)]
    found = tuple(each for call in sorted(calls, key=lambda call: call.lineno) for each in _option(call))
    if not found:
        raise ValueError("it has neither a class Args nor a call of add_argument")
    return "argparse", found


def _fields(args: ast.ClassDef, lines: list[str]) -> Iterator[Parameter]:
    """Return the fields of a dataclass; the string below a field is its help."""
    remarks = (
        number for number, line in enumerate(lines, start=1) if _COMPUTED.search(line) and line.strip()[0] == "#"
    )
    computed_from = next((number for number in remarks if number > args.lineno), math.inf)
    for field, below in zip(args.body, [*args.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        help_text = _text(below.value) if isinstance(below, ast.Expr) else ""
        kind = _annotated(field.annotation)
        if kind is None or field.lineno > computed_from or _COMPUTED.search(help_text):
            continue
        yield _parameter(field.target.id, kind, _value(field.value), help_text)


def _annotated(annotation: ast.expr) -> Type | None:
    """Return the type that an annotation names; None for a list and the like."""
    match annotation:
        case ast.Name(id=name):
            return _TYPES.get(name)
        case ast.Constant(value=str(text)):
            return _annotated(ast.parse(text, mode="eval").body)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return _annotated(inner)
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return _annotated(left)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            names = choices.elts if isinstance(choices, ast.Tuple) else [choices]
            return "str" if all(isinstance(_value(name), str) for name in names) else None
    return None


def _is_add_argument(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"


def _option(call: ast.Call) -> Iterator[Parameter]:
    """Return the parameter of an `add_argument` call; None if it is positional or a list."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    names = [text for text in map(_text, call.args) if text.startswith("--")]
    kind = _converted(given)
    if not names or kind is None or ("nargs" in given and _value(given["nargs"]) != "?"):
        return
    name = _text(given.get("dest")) or names[0].removeprefix("--").replace("-", "_")
    yield _parameter(name, kind, _value(given.get("default")), _text(given.get("help")))


def _converted(given: Mapping[str | None, ast.expr]) -> Type | None:
    """Return the type of an option; None if it takes no value, or a value of a custom type."""
    match given.get("type"):
        case ast.Name(id=name) if name in _TYPES:
            return _TYPES[name]
        case None:
            return None if "action" in given else "str"
        case converter:
            # type=lambda x: bool(strtobool(x)), in any spelling
            return "bool" if "strtobool" in ast.unparse(converter) else None


def _parameter(name: str, kind: Type, default: Any, help_text: str) -> Parameter:
    if default is _UNKNOWN or not isinstance(default, Value) or default in (math.inf, -math.inf):
        default = None
    if kind == "int" and isinstance(default, float) and default.is_integer():
        default = int(default)
    if kind == "float" and isinstance(default, int):
        default = float(default)
    return Parameter(name=name, type=kind, default=default, help=" ".join(help_text.split()))


def _text(node: ast.expr | None) -> str:
    value = _value(node)
    return value if isinstance(value, str) else ""


def _value(node: ast.expr | None) -> Any:
    """Evaluate a simple expression, such as `int(1e6)` or `-10`; `_UNKNOWN` for anything that needs execution."""
    match node:
        case None:
            return None
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand) if isinstance(_value(operand), int | float):
            return -_value(operand)
        case ast.Call(func=ast.Name(id="int" | "float" as name), args=[argument], keywords=[]):
            inner = _value(argument)
            is_number = isinstance(inner, int | float | str)
            try:
                return {"int": int, "float": float}[name](inner) if is_number else _UNKNOWN
            except (ValueError, OverflowError):
                return _UNKNOWN
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SUMS:
            sides = _value(left), _value(right)
            try:
                return _SUMS[type(sign)](*sides) if all(isinstance(each, int | float) for each in sides) else _UNKNOWN
            except ZeroDivisionError:
                return _UNKNOWN
    return _UNKNOWN
