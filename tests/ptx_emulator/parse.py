"""PTX text -> Module: its variables, functions and instructions, each with its line. Nothing is executed here."""

import functools
import re
from dataclasses import dataclass, field

from .dtypes import NUMPY, width
from .errors import Unsupported


@dataclass(frozen=True)
class Instruction:
    opcode: str  # "add"
    modifiers: tuple[str, ...]  # ("rn", "f32")
    operands: tuple[str, ...]  # ("%f3", "%f1", "%f2"); vectors and addresses keep their brackets
    guard: str | None  # the predicate register of @p or @!p
    negated: bool
    line: int  # in the PTX text, from 1
    text: str
    source: str = ""  # "file 1 line 23" where the PTX has .loc

    def has(self, *words: str) -> bool:
        return any(word in self.modifiers for word in words)


@dataclass(frozen=True)
class Variable:
    """A module variable; `space` is global, const, shared or local. A shared one of no bytes is the dynamic one."""

    name: str
    space: str
    nbytes: int
    align: int
    data: bytes | None = None


@dataclass(frozen=True)
class Parameter:
    name: str
    type: str
    nbytes: int
    align: int


@dataclass
class Function:
    name: str
    is_entry: bool
    parameters: list[Parameter]
    returns: str | None = None
    instructions: list[Instruction] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)  # name -> PTX type
    labels: dict[str, int] = field(default_factory=dict)  # name -> index of an instruction
    tables: dict[str, list[str]] = field(default_factory=dict)  # .branchtargets of brx.idx


@dataclass
class Module:
    text: str
    target: str = ""
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)

    def entry(self, name: str | None = None) -> Function:
        """The kernel of that name, or the only one."""
        entries = [function for function in self.functions.values() if function.is_entry]
        if name is not None:
            entries = [function for function in entries if function.name == name]
        if len(entries) != 1:
            raise ValueError(f"the PTX has {len(entries)} entries{f' named {name}' if name else ''}, want one")
        return entries[0]


def split_operands(text: str) -> list[str]:
    """Split at the commas that stand in no bracket: "{%a, %b}, [%r+4]" -> ["{%a, %b}", "[%r+4]"]."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char in "{[(") - (char in "}])")
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    return parts + [current.strip()] if current.strip() else parts


def elements(operand: str) -> list[str]:
    """The registers of a vector operand, or the one register."""
    return split_operands(operand[1:-1]) if operand.startswith("{") else [operand]


_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_FUNCTION = re.compile(r"\.(entry|func)\b\s*(\([^)]*\))?\s*([\w$%]+)\s*(\([^)]*\))?[^{;]*([{;])", re.S)
_VARIABLE = re.compile(
    r"\.(global|shared|const|local)\b(.*?)\.(\w+)\s+([\w$%]+)((?:\s*\[\s*\d*\s*\])*)\s*(?:=\s*(.*))?$", re.S
)
_PARAMETER = re.compile(r"\.param\b(.*?)([\w$%]+)\s*(\[\s*\d+\s*\])?$", re.S)
_LABEL = re.compile(r"([\w$%.]+)\s*:(?!:)\s*")
_GUARD = re.compile(r"@(!?)([\w$%.]+)\s+")


def parse(text: str) -> Module:
    """Read a whole PTX module."""
    clean = _COMMENTS.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    clean = clean.split("\n.section", 1)[0] if "\n.section" in clean else clean  # debug sections
    module = Module(text)
    if target := re.search(r"^\s*\.target\s+(\w+)", clean, re.M):
        module.target = target.group(1)
    position = 0
    for match in _FUNCTION.finditer(clean):
        if match.start() < position:
            continue
        _variables(module, clean[position : match.start()])
        position = match.end()
        if match.group(5) == ";":  # a declaration
            continue
        end = _closing_brace(clean, match.end())
        kind, returns, name, parameters = match.group(1, 2, 3, 4)
        function = Function(name, kind == "entry", [_parameter(p) for p in split_operands((parameters or "()")[1:-1])])
        if returns:
            function.returns = _parameter(returns[1:-1].strip()).name
        _Body(module, function, clean, match.end(), end).read()
        module.functions[name] = function
        position = end + 1
    _variables(module, clean[position:])
    return module


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    raise Unsupported("a function body without its closing brace")


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.search(text)
    kinds = [word for word in re.findall(r"\.(\w+)", text) if word in NUMPY]
    if not match or not kinds:
        raise Unsupported(f"parameter: {text}")
    count = int(match.group(3).strip("[] ")) if match.group(3) else 1
    align = re.search(r"\.align\s+(\d+)", text)
    # ".param .u64 .ptr .align 16 p": there the alignment is what p points to
    own_align = int(align.group(1)) if align and ".ptr" not in text else width(kinds[0])
    return Parameter(match.group(2), kinds[0], count * width(kinds[0]), own_align)


def _variables(module: Module, text: str) -> None:
    text = re.sub(r"^\s*\.(version|target|address_size|file|loc)\b[^\n]*", "", text, flags=re.M)
    for statement in text.split(";"):
        _variable(module, statement.strip())


def _variable(module: Module, statement: str) -> None:
    match = _VARIABLE.search(statement)
    if not match:
        return
    space, _, ptx_type, name, dimensions, values = match.groups()
    if ptx_type not in NUMPY:
        return
    count, item = 1, width(ptx_type)
    for size in re.findall(r"\[\s*(\d*)\s*\]", dimensions):
        count *= int(size or 0)
    align = re.search(r"\.align\s+(\d+)", statement)
    data = None
    if values:
        words = [word.strip() for word in values.strip("{} \n\t").split(",")]
        data = b"".join(_initial(word, item) for word in words).ljust(count * item, b"\0")
    module.variables[name] = Variable(name, space, count * item, int(align.group(1)) if align else item, data)


def _initial(word: str, item: int) -> bytes:
    if word[:2].lower() in ("0f", "0d"):
        return int(word[2:], 16).to_bytes(item, "little")
    return (int(word.rstrip("U"), 0) & ((1 << 8 * item) - 1)).to_bytes(item, "little")


class _Body:
    """Reads one function's statements; names declared in an inner { } get a number of their own."""

    def __init__(self, module: Module, function: Function, text: str, start: int, end: int) -> None:
        self.module, self.function, self.text = module, function, text
        self.position, self.end = start, end
        self.scopes: list[dict[str, str]] = [{}]
        self.count = 0
        self.source = ""
        self.line, self.line_at = 1 + text.count("\n", 0, start), start

    def read(self) -> None:
        while True:
            while self.position < self.end and self.text[self.position].isspace():
                self.position += 1
            if self.position >= self.end:
                return
            char = self.text[self.position]
            if char == "{":
                self.scopes.append({})
                self.position += 1
            elif char == "}":
                self.scopes.pop()
                self.position += 1
            elif match := _LABEL.match(self.text, self.position, self.end):
                self._label(match)
            elif match := re.compile(r"\.(loc|file)\b([^\n]*)").match(self.text, self.position, self.end):
                numbers = match.group(2).split()
                self.source = f"line {numbers[1].rstrip(',')}" if match.group(1) == "loc" and len(numbers) > 1 else ""
                self.position = match.end()
            else:
                start, stop = self.position, self.text.index(";", self.position)
                self.position = stop + 1
                self._statement(" ".join(self.text[start:stop].split()), start)

    def _label(self, match: re.Match[str]) -> None:
        name = match.group(1)
        self.position = match.end()
        if table := re.compile(r"\.branchtargets\b([^;]*);").match(self.text, self.position):
            self.function.tables[name] = split_operands(table.group(1))
            self.position = table.end()
        else:
            if name in self.function.labels:
                raise Unsupported(f"label {name} stands twice in one function")
            self.function.labels[name] = len(self.function.instructions)

    def _declare(self, name: str) -> str:
        if len(self.scopes) == 1:
            return name
        self.count += 1
        self.scopes[-1][name] = f"{name}${self.count}"
        return self.scopes[-1][name]

    def _statement(self, statement: str, start: int) -> None:
        if match := re.match(r"\.reg\s+\.(\w+)\s+(.*)", statement):
            for name in match.group(2).split(","):
                name = name.strip()
                if many := re.fullmatch(r"(.*)<(\d+)>", name):
                    for number in range(int(many.group(2))):
                        self.function.registers[self._declare(f"{many.group(1)}{number}")] = match.group(1)
                else:
                    self.function.registers[self._declare(name)] = match.group(1)
        elif statement.startswith(".param"):  # of a call: it becomes a register, see inline.py
            parameter = _parameter(statement)
            self.function.registers[self._declare(parameter.name)] = parameter.type
        elif statement.startswith("."):
            if statement.startswith((".shared", ".local", ".const", ".global")):
                _variable(self.module, statement)
        elif statement:
            self._instruction(statement, start)

    def _instruction(self, statement: str, start: int) -> None:
        self.line += self.text.count("\n", self.line_at, start)
        self.line_at = start
        text = statement
        for scope in reversed(self.scopes[1:]):
            if scope:
                names = "|".join(re.escape(name) for name in sorted(scope, key=len, reverse=True))
                pattern = re.compile(rf"(?<![\w.%$])({names})(?![\w$])")
                statement = pattern.sub(functools.partial(_renamed, scope), statement)
        guard, negated = None, False
        if match := _GUARD.match(statement):
            negated, guard = bool(match.group(1)), match.group(2)
            statement = statement[match.end() :]
        head, _, tail = statement.partition(" ")
        if "{" in head or "[" in head:  # "mov.b32{%rs1,%rs2},%r1": no blank after the opcode
            cut = re.search(r"[{\[]", statement)
            assert cut is not None
            head, tail = statement[: cut.start()], statement[cut.start() :]
        opcode, *modifiers = head.split(".")
        if opcode == "bar" and modifiers[0] == "warp":  # no block barrier: an opcode of its own
            opcode, modifiers = "bar.warp", modifiers[1:]
        self.function.instructions.append(
            Instruction(
                opcode, tuple(modifiers), tuple(split_operands(tail)), guard, negated, self.line, text, self.source
            )
        )


def _renamed(names: dict[str, str], match: re.Match[str]) -> str:
    return names[match.group(1)]
