"""Generated AscendC to C++ for the simulator. Pure text to text.

The generated statements stay as they are, line for line, but for three things: UB address
constants become offsets into the simulated buffer, statements that can fail get a marker with their
line number, and each kernel gets an entry that unpacks its arguments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One packed kernel argument."""

    name: str
    type: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEntry:
    """One ``__global__`` function of a source and the layout of its argument block."""

    name: str
    parameters: tuple[Parameter, ...]
    argument_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenSource:
    """C++ for the simulator and what was read from the generated source."""

    text: str
    kernels: tuple[KernelEntry, ...]
    ub_names: tuple[tuple[int, str], ...]
    """Offset and name of each UB buffer that the source declares."""
    needs_all_blocks: bool
    """Blocks wait for each other, so all of them must run at the same time."""


_UB_ADDRESS = re.compile(r"(\w+) = \(__ubuf__ ([\w:]+) ?\*\)(\d+);")
_KERNEL = re.compile(r'extern "C" __global__ [^\n({]*?void (\w+)\(([^)\n]*)\) \{')
_VECTOR_CALL = re.compile(r"^\s+\w+_simd_vf_\d+\w*\(.*\);$")
_CAN_FAIL = re.compile(
    r"\basc_(?!create_mask|update_mask|init\b)\w+|\bsimd_inst::(?:v?ld|vlds|pld|vst|vsst|pst|vgather"
    r"|vscatter|mem_bar)\w*|\bdevice_assert|\btl::AscendAllReduce|\bblaneid\b|_simt_vf_"
)
_STARTS_STATEMENT = re.compile(r"^\s+(?!else\b|case\b|default\b|for\b|while\b|return\b)[\w:*(]")

_SIZES = {
    **dict.fromkeys(("int64_t", "uint64_t", "double"), 8),
    **dict.fromkeys(("int32_t", "uint32_t", "int", "float", "bool"), 4),
    **dict.fromkeys(("int16_t", "uint16_t", "half", "bfloat16_t"), 2),
    **dict.fromkeys(("int8_t", "uint8_t"), 1),
}


def rewrite_source(source: str) -> RewrittenSource:
    """Return the simulator's C++ for one generated AscendC source.

    Raises:
        ValueError: the source has no kernel, or a kernel has a parameter of an unknown type.
    """
    kernels = tuple(_kernel(match) for match in _KERNEL.finditer(source))
    if not kernels:
        raise ValueError('source: has no kernel, must define an extern "C" __global__ function')
    ub_names = tuple((int(m[3]), m[1]) for m in _UB_ADDRESS.finditer(source))
    needs_all_blocks = "asc_sync_inter_" in source
    body = _UB_ADDRESS.sub(r"\1 = TILEWHEEL_SIM_UB(\2, \3);", source)
    text = "\n".join(_mark_lines(body.split("\n")))
    entries = [_entries_head(source, ub_names)]
    entries += [_entry(kernel, len(ub_names), needs_all_blocks) for kernel in kernels]
    return RewrittenSource(
        text=text + "\n" + "".join(entries),
        kernels=kernels,
        ub_names=ub_names,
        needs_all_blocks=needs_all_blocks,
    )


def _kernel(match: re.Match[str]) -> KernelEntry:
    """Lay the arguments out as TileLang's host code packs them for ACL."""
    parameters = []
    end = 0
    for declaration in filter(None, (part.strip() for part in match[2].split(","))):
        words = re.sub(r"__gm__|__restrict__|\bconst\b", " ", declaration)
        declared, _, name = words.replace("*", "* ").rpartition(" ")
        type_name = "void *" if "*" in declared else declared.strip()
        size = 8 if type_name == "void *" else _SIZES.get(type_name)
        if size is None:
            known = ", ".join(sorted(_SIZES))
            raise ValueError(
                f"{match[1]}: parameter {name} has type {type_name}, must be a pointer or one of "
                f"{known}"
            )
        alignment = max(size, 4)
        end = (end + alignment - 1) // alignment * alignment
        parameters.append(Parameter(name=name, type=type_name, offset=end, size_bytes=size))
        end += size
    return KernelEntry(
        name=match[1], parameters=tuple(parameters), argument_bytes=(end + 7) // 8 * 8
    )


def _mark_lines(lines: list[str]) -> list[str]:
    """Put a marker before each statement that can fail; the number of lines stays the same."""
    marked = []
    previous = ""
    for number, line in enumerate(lines, start=1):
        # A statement begins where the one before has ended: never inside a continued one.
        begins = previous.endswith((";", "{", "}")) and line.endswith((";", "{"))
        if begins and _VECTOR_CALL.match(line):
            marked.append(f"::sim::begin_vector_function({number}); {line}")
        elif begins and _CAN_FAIL.search(line) and _STARTS_STATEMENT.match(line):
            marked.append(f"::sim::at_line({number}); {line}")
        else:
            marked.append(line)
        previous = line.rstrip() or previous
    return marked


def _entries_head(source: str, ub_names: tuple[tuple[int, str], ...]) -> str:
    rows = "".join(f'    {{{offset}, "{name}"}},\n' for offset, name in ub_names)
    names = f"static const sim::UbName tilewheel_ub_names[] = {{\n{rows}}};\n" if rows else ""
    # The source travels along so that an error can quote the statement. Compilers need not accept
    # literals of more than 64 KB, so it is cut in pieces, at lines.
    pieces = "\n".join(_raw_literals(source))
    return f"{names}static const char tilewheel_source[] =\n{pieces};\n"


def _raw_literals(source: str) -> list[str]:
    pieces, piece = [], ""
    for line in source.splitlines(keepends=True):
        if len(piece) + len(line) > 16000:
            pieces.append(piece)
            piece = ""
        piece += line
    return [f'R"tilewheel({part})tilewheel"' for part in [*pieces, piece]]


def _entry(kernel: KernelEntry, num_ub_names: int, needs_all_blocks: bool) -> str:
    arguments = ", ".join(
        f"sim::argument<{index}>({kernel.name}, arguments + {parameter.offset})"
        for index, parameter in enumerate(kernel.parameters)
    )
    names = "tilewheel_ub_names" if num_ub_names else "nullptr"
    return (
        f"static void {kernel.name}__entry(sim::Core *core,\n"
        f"    [[maybe_unused]] const unsigned char *arguments) {{\n"
        f"  sim::current = core;\n"
        f"  {kernel.name}({arguments});\n"
        f"}}\n"
        f'extern "C" __attribute__((visibility("default"), used))\n'
        f"const sim::KernelInfo {kernel.name}__tilewheel_sim = {{\n"
        f"    sim::kAbiVersion, {kernel.argument_bytes}, {num_ub_names}, "
        f"{int(needs_all_blocks)}, {names}, tilewheel_source, {kernel.name}__entry}};\n"
    )
