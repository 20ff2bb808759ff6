#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The house rules that a machine can check, over every file of the repository.

A rule is a function from the tree (path -> text) to complaints "path:line: what". Each has a
snippet that it must flag (SELF_TESTS), checked in the same run. Usage: tests/tidy_test.py
"""
import os
import posixpath
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXT = (".h", ".cpp", ".cu", ".proto", ".py", ".sh", ".md", ".txt", ".yaml", ".json", ".jinja", "run")
CODE = (".h", ".cpp", ".py", ".sh", ".md")
FOLDERS = ("engine", "scheduler", "kvcache", "kernels", "server", "quant", "tests", "bench", "deploy")
PRODUCT = ("engine", "scheduler", "kvcache", "kernels", "server", "quant")
SELF = "tests/tidy_test.py"  # holds the bad snippets

# The rooms of engine/ and server/, lowest first: one may use those before it, where ALLOWED lets it.
ENGINE_ORDER = ("core", "tokenizer/tables", "tokenizer/text", "tokenizer/models", "tokenizer",
                "tokenizer/pipeline", "tokenizer/files", "weights", "parallel", "models", "sampling/grammar",
                "sampling", "spec", "tiers", "handoff", "", "rank", "draft", "plan", "run", "loop", "quantize")
SERVER_ORDER = ("json", "jinja", "http/client", "http", "keys", "hub", "traces", "prompt", "tools", "front",
                "api", "web", "grpc", "router", "load", "mock", "", "cli")
ORDERS = {"engine": ENGINE_ORDER, "server": SERVER_ORDER}
# What each layer may include; the entries are prefixes of paths. Tests and bench: anything.
CORE = "engine/core/"
ALLOWED = {
    CORE: (CORE,), "quant/": ("quant/", CORE),
    "kernels/": ("kernels/", "quant/", CORE),
    "kvcache/store/": ("kvcache/", "kernels/", "quant/", CORE),
    "kvcache/transport/": ("kvcache/transport/", "kernels/", CORE),
    "kvcache/": ("kvcache/", CORE),
    "scheduler/": ("scheduler/", "kvcache/", CORE),
    "engine/tokenizer/": ("engine/tokenizer/", CORE),
    "engine/weights/": ("engine/weights/", "engine/tokenizer/", "kernels/", "quant/", CORE),
    "engine/models/": ("engine/models/", "engine/weights/", "engine/parallel/", "kvcache/", "kernels/", "quant/", CORE),
    "engine/sampling/grammar/": ("engine/sampling/grammar/", CORE),
    "engine/sampling/": ("engine/sampling/", "kernels/", CORE),
    "engine/tiers/": ("engine/tiers/", "scheduler/", "kvcache/", CORE),
    "engine/handoff/": ("engine/handoff/", "engine/tiers/", "scheduler/", "kvcache/", CORE),
    "engine/spec/": ("engine/spec/", "engine/sampling/request_record.h", "engine/sampling/grammar/", "scheduler/draft_survival.h", CORE),
    "engine/run/": ("engine/", "scheduler/scheduler_output.h", "kvcache/", "kernels/", "quant/"),
    "engine/": ("engine/", "scheduler/", "kvcache/", "kernels/", "quant/"),
    "server/": ("server/", "engine/engine.h", "engine/request.h", "engine/handoff/handoff_spec.h",
                "engine/handoff/fallback_counters.h", "engine/handoff/handoff_config.h",
                "engine/handoff/kv_messages.h", "engine/handoff/kv_peer.h", "engine/inspect.h",
                "engine/kv_links.h", "engine/quantize.h", "engine/ranks_check.h", "engine/sampling/grammar/left_out_keywords.h",
                "engine/tokenizer/", CORE),
}
# Where kernels become C++ for the CPU (tests/support/simt), and nowhere else.
SHIM_DOORS = {"kernels/cuda/gpu.h": "tests/support/simt/simt.h",
              "kernels/cuda/peers.h": "tests/support/simt/peers_simt.h",
              "kernels/cuda/ptx.h": "tests/support/simt/ptx_simt.h"}
# What ALLOWED would let a layer include: neither the cache's manager nor the scheduler knows bytes.
HIDDEN = {
    "kvcache/store/": ("kvcache/transport/",),
    "kvcache/": ("kvcache/store/", "kvcache/transport/"),
    "scheduler/": ("kvcache/store/", "kvcache/transport/"),
}
MAX_LINES = 600
LONG_FILES = ("engine/tokenizer/text/unicode_data.cpp",)  # a table that a program writes
MAX_FUNCTION_LINES = 70
# Tables of knobs, one row each.
LONG_FUNCTIONS = tuple(("engine/core/config_knobs.cpp", name) for name in (
    "make_model_knobs", "make_scheduler_knobs", "make_limit_knobs"))
HEAVY = re.compile(r"<(iostream|regex|ranges|nlohmann/json\.hpp|CLI/\S*|spdlog/\S*)>")
PRINTS = re.compile(r"std::(cout|cerr|clog)\b|(?<![\w.>])(std::)?(v?f?printf|puts|putchar)\s*\(")
MAY_PRINT = ("server/cli/", "engine/core/status.cpp")
MAY_SLEEP = ("server/http_server.cpp",)  # a bounded wait while the process ends
SLEEPS = re.compile(r"\bsleep_(for|until)\b|(?<![\w.>])u?sleep\s*\(")
# A comment names its subject first: it is understood without the line above it.
BEGINNINGS = re.compile(r"[/#]+<?\s*(Of|As|The same|Until|Once)\b")
MAX_BEGINNINGS = 15
VAGUE_WORDS, MAX_VAGUE_WORDS = re.compile(r"(?i)\b(nobody|somebody|none of|is another|is told|behind)\b"), 50
# A name that two runs share, or a folder deleted while a thread still writes to it, fails now and then.
FOLDERS_BY_HAND = re.compile(r"\bTempDir\b|\btemp_directory_path\b|\bmkdtemp\b")
MAY_NAME_FOLDERS = ("tests/support/temporary_folder.h", "tests/fuzz/")
BANNED = (
    (re.compile(r"std::w?regex\b"), "std::regex"),
    (re.compile(r"std::endl\b"), "std::endl"),
    (re.compile(r"(?<![\w.>])s?rand\s*\("), "rand()"),
    (re.compile(r"(?<!\w)assert\s*\("), "assert(); use CHECK or DCHECK"),
)


def is_cpp(path):
    return path.endswith((".h", ".cpp", ".cu"))


def is_product(path):
    return path.split("/")[0] in PRODUCT


def strip(text, comments=True):
    """The code with comments and the contents of literals blanked; lines stay where they are."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^()\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S)

    def blank(match):
        found = match.group()
        if found.startswith("/"):
            return re.sub(r"[^\n]", " ", found) if comments else found
        return '"' + re.sub(r"[^\n]", " ", found[1:-1]) + '"'

    return pattern.sub(blank, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def own_includes(text):
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if match:
            yield number, match.group(1)


def include_edges(tree):
    for path in filter(is_cpp, tree):
        layer = next((name for name in ALLOWED if path.startswith(name)), None)
        for number, target in own_includes(tree[path]):
            if target not in tree:
                yield f"{path}:{number}: include \"{target}\" is no path from the root"
                continue
            if layer is None or SHIM_DOORS.get(path) == target:
                continue
            if target.startswith(HIDDEN.get(layer, ())) or not target.startswith(ALLOWED[layer]):
                yield f"{path}:{number}: {layer} may not include {target}"


def include_cycles(tree):
    edges = {p: [t for _, t in own_includes(tree[p]) if t in tree] for p in filter(is_cpp, tree)}
    state = {}

    def visit(path, trail):
        state[path] = "open"
        for target in edges[path]:
            if state.get(target) == "open":
                yield f"{path}:1: include cycle {' -> '.join(trail + [path, target])}"
            elif target not in state:
                yield from visit(target, trail + [path])
        state[path] = "done"

    for path in edges:
        if path not in state:
            yield from visit(path, [])


def room_order(tree):
    """A room includes its own files and those of rooms before it."""
    def room_of(path):
        return path.partition("/")[2].rpartition("/")[0]

    for path in filter(is_cpp, tree):
        folder = path.split("/")[0]
        if folder not in ORDERS:
            continue
        if room_of(path) not in ORDERS[folder]:
            yield f"{path}:1: {room_of(path)} has no place in the order of {folder}/"
            continue
        place = ORDERS[folder].index(room_of(path))
        for number, target in own_includes(tree[path]):
            if target in tree and target.startswith(folder + "/") and (
                    room_of(target) not in ORDERS[folder][:place + 1]):
                yield f"{path}:{number}: {target} is above it in the order of {folder}/"


def unit_of(path):
    """x_impl.h is a part of x that its .cpp files share."""
    return posixpath.splitext(path)[0].removesuffix("_impl")


def unit_cycles(tree):
    """A unit is the files of one stem, in product folders."""
    edges = {}
    for path in filter(is_product, filter(is_cpp, tree)):
        own = edges.setdefault(unit_of(path), set())
        own |= {unit_of(t) for _, t in own_includes(tree[path])
                if t in tree and is_product(t) and unit_of(t) != unit_of(path)}
    reach = {}
    for start in edges:
        seen, rest = set(), [start]
        while rest:
            new = edges.get(rest.pop(), set()) - seen
            seen |= new
            rest += new
        reach[start] = seen
    cycles = {frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in edges if a in reach[a]}
    for cycle in cycles:
        yield f"{min(cycle)}.h:1: cycle of units {', '.join(sorted(cycle))}"


def file_length(tree):
    for path in tree:
        lines = tree[path].count("\n")
        if not path.endswith((".h", ".cpp", ".cu", ".py", ".sh")):
            continue
        if lines > MAX_LINES and path not in LONG_FILES:
            yield f"{path}:1: {lines} lines; a file has at most {MAX_LINES}"
        if lines <= MAX_LINES and path in LONG_FILES:
            yield f"{SELF}:1: LONG_FILES has one that is short: {path}"


def line_length(tree):
    for path in filter(is_cpp, tree):
        lines = tree[path].split("\n")
        codes = strip(tree[path], comments=False).split("\n")
        for number, (line, code) in enumerate(zip(lines, codes), 1):
            if len(line) > 100 and code == line:  # no part of a literal
                yield f"{path}:{number}: {len(line)} columns; at most 100"


def function_length(tree):
    """A brace after ')' with nothing but namespaces and types around it opens a function. Tests
    may be longer: a table of cases is one function; so may LONG_FUNCTIONS."""
    for path in filter(is_cpp, tree):
        if path.startswith("tests/"):
            continue
        code = re.sub(r"(?m)^\s*#(.*\\\n)*.*$", lambda m: re.sub(r"[^\n]", " ", m.group()),
                      strip(tree[path]))
        stack, head_start = [], 0
        for match in re.finditer(r"[{};]", code):
            character, at = match.group(), match.start()
            if character == "{":
                head = code[head_start:at]
                kind = "other"
                name = re.search(r"(\w+)\s*\(", head)
                if re.search(r"\b(namespace|class|struct|union|extern)\b[^()=]*$", head):
                    kind = "scope"
                elif "(" in head and "=" not in head.split("(")[0] and all(
                        k == "scope" for k, _, _ in stack):
                    kind = "function"
                stack.append((kind, at, name and name.group(1)))
            elif character == "}" and stack:
                kind, start, name = stack.pop()
                lines = line_of(code, at) - line_of(code, start) + 1
                is_long, may = lines > MAX_FUNCTION_LINES, (path, name) in LONG_FUNCTIONS
                if kind == "function" and is_long and not may:
                    yield (f"{path}:{line_of(code, start)}: a function of {lines} lines; "
                           f"at most {MAX_FUNCTION_LINES}")
                if kind == "function" and may and not is_long:
                    yield f"{SELF}:1: LONG_FUNCTIONS has one that is short: {name}"
            head_start = at + 1


def device_conditions(tree):
    condition = re.compile(r"(?m)^[ \t]*#[ \t]*(?:el)?if.*(CUDA|NVCC|HIP|__AVX|__SSE|__ARM|__aarch64)")
    for path in (p for p in tree if is_cpp(p) and not p.startswith("kernels/")):
        for match in condition.finditer(tree[path]):
            yield f"{path}:{line_of(tree[path], match.start())}: device #if outside kernels/"


def banned_tokens(tree):
    for path in filter(is_cpp, tree):
        code = strip(tree[path])
        rules = list(BANNED) if is_product(path) else []
        if is_product(path) and not path.startswith(MAY_PRINT):
            rules.append((PRINTS, "printing; use engine/core/log.h"))
        if is_product(path) and not path.startswith(MAY_SLEEP):
            rules.append((SLEEPS, "sleeping"))
        if path.startswith(("scheduler/", "kvcache/", "kernels/")):
            rules.append((re.compile(r"\bshared_ptr\b"), "shared_ptr on the step path"))
        if path.startswith("kernels/"):
            rules.append((re.compile(r"\bWeightFormat::k"), "a weight format by name; ask layout_of()"))
        if path.startswith("tests/") and not path.startswith(MAY_NAME_FOLDERS):
            rules.append((FOLDERS_BY_HAND, "a folder by hand; use tests/support/temporary_folder.h"))
        for pattern, what in rules:
            for match in pattern.finditer(code):
                yield f"{path}:{line_of(code, match.start())}: {what}"


# In what is compiled both by nvcc and for the shim: pattern, what to say, the files that may.
CUDA_RULES = (
    (r"\basm\b", "inline assembly; give it a name in kernels/cuda/ptx.h", tuple(SHIM_DOORS)),
    (r"<<<", "a launch that is not gpu::launch", ()),
    (r"\b__shared__\b", "__shared__; use GPU_SHARED", ("kernels/cuda/gpu.h",)),
    (r"\b__activemask\b|\bcooperative_groups\b|\bcutlass\b|\bcute\b", "not in the shim", ()),
    (r"\b(__expf|__logf|__powf|__sinf|__cosf|__tanf|__fdividef|__frsqrt_rn|rsqrtf?|expf|exp2f|tanhf|logf"
     r"|powf|sinf|cosf)\s*\(", "a function that is not exactly specified", ()),
    (r"\batomic\w+\s*\(", "an atomic; gpu::shared_add is there for integers, and sums of floats need an order",
     ("kernels/cuda/gpu.h",)),
    (r"#\s*include\s*<cuda", "CUDA's headers", ("kernels/cuda/gpu.h", "kernels/cuda/memory.cu",
                                              "kernels/cuda/tensor_map.cu")),
    (r"#\s*include\s*\"tests/support/simt", "the shim by name; include kernels/cuda/gpu.h",
     tuple(SHIM_DOORS)),
)
BOUNDS = re.compile(r"\s*void\s+__launch_bounds__\([^()]+,\s*1\)")


def cuda_sources(tree):
    for path in (p for p in tree if is_cpp(p) and (p.startswith("kernels/cuda/") or p.endswith(".cu"))):
        code = strip(tree[path])
        text = re.sub(r"(?m)^\s*//.*$", "", tree[path])  # strip() blanks the names of includes
        for pattern, what, may in CUDA_RULES:
            source = text if "include" in pattern else code
            for match in re.finditer(pattern, source):
                if path not in may:
                    yield f"{path}:{line_of(source, match.start())}: {what}"
        for match in re.finditer(r"\b__global__\b", code):
            if not BOUNDS.match(code, match.end()):
                yield f"{path}:{line_of(code, match.start())}: a kernel without __launch_bounds__(n, 1)"


def heavy_headers(tree):
    for path in tree:
        if path.endswith(".h") and is_product(path):
            for match in HEAVY.finditer(tree[path]):
                yield f"{path}:{line_of(tree[path], match.start())}: {match.group()} in a header"


def unfinished(tree):
    words = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    for path in tree:
        for match in words.finditer(tree[path]):
            yield f"{path}:{line_of(tree[path], match.start())}: unfinished: {match.group()}"


def machine_paths(tree):
    places = re.compile(r"(?<![\w.$}])/(work|root|home/\w+|tmp/w)/")
    for path in tree:
        for match in places.finditer(tree[path]):
            yield f"{path}:{line_of(tree[path], match.start())}: a path of one machine"


def licence_line(tree):
    for path in tree:
        name = posixpath.basename(path)
        if not path.endswith((".h", ".cpp", ".cu", ".py", ".sh", ".cmake")) and name not in (
                "CMakeLists.txt", "run"):
            continue
        first = [line for line in tree[path].split("\n") if not line.startswith("#!")][0]
        if not re.match(r"(//|#) SPDX-License-Identifier: Apache-2\.0$", first):
            yield f"{path}:1: no SPDX line"


def header_comment(tree):
    for path in tree:
        if not path.endswith(".h") or not is_product(path):
            continue
        lines = tree[path].split("\n")
        if len(lines) < 2 or not lines[1].startswith("// "):
            yield f"{path}:2: a header says first what it is for"
        if "#pragma once" not in lines:
            yield f"{path}:1: no #pragma once"


def header_names(tree):
    """The name of a header says which one it is, without its folder."""
    first = {}
    for path in tree:
        if path.endswith(".h") and is_product(path):
            other = first.setdefault(posixpath.basename(path), path)
            if other != path:
                yield f"{path}:1: {other} has this name too"


def type_names(tree):
    """Two types of one name in one namespace share their inline functions when they are linked
    together. Kernels of instruction sets repeat theirs by design."""
    first = {}
    for path in tree:
        if not (path.endswith(".h") and is_product(path)) or path.startswith("kernels/"):
            continue
        code, space = strip(tree[path]), ""
        for match in re.finditer(r"(?m)^(?:namespace ([\w:]+) \{|(?:class|struct) (\w+)\b(?!::)[^;{(]*\{)", code):
            if match[1]:
                space = match[1]
                continue
            other = first.setdefault((space, match[2]), path)
            if other != path:
                yield f"{path}:{line_of(code, match.start())}: {other} has a {match[2]} too"


def dead_files(tree):
    """Every source is named in some CMakeLists.txt."""
    listed = set()
    for path in tree:
        if posixpath.basename(path) != "CMakeLists.txt":
            continue
        for name in re.findall(r"[\w.${}/-]+", tree[path]):
            root = name.startswith("${CMAKE_SOURCE_DIR}/")
            folder = "" if root else posixpath.dirname(path)
            name = name.removeprefix("${CMAKE_SOURCE_DIR}/")
            listed.add(posixpath.normpath(posixpath.join(folder, name)))
    for path in tree:
        if path.endswith((".cpp", ".cu")) and path not in listed:
            yield f"{path}:1: in no CMakeLists.txt"


def readmes(tree):
    for folder in FOLDERS:
        if any(path.startswith(folder + "/") for path in tree) and folder + "/README.md" not in tree:
            yield f"{folder}/README.md:1: missing"
    for path in tree:
        lines, words = tree[path].count("\n"), len(tree[path].split()) if path.endswith("README.md") else 0
        if words and (lines > 150 or words > 900):
            yield f"{path}:1: {lines} lines and {words} words; at most 150 and 900"


def links(tree):
    folders = {posixpath.dirname(path) for path in tree}
    for path in tree:
        if not path.endswith(".md"):
            continue
        for match in re.finditer(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", tree[path]):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match.group(1)))
            if target not in tree and not os.path.exists(os.path.join(ROOT, target)) and not any(
                    f == target or f.startswith(target + "/") for f in folders):
                line = line_of(tree[path], match.start())
                yield f"{path}:{line}: link to {match.group(1)} leads nowhere"


def knob_rows(tree):
    """Adding a member of Config without its row would make a knob nobody can set."""
    header, table = tree.get("engine/core/config.h", ""), tree.get("engine/core/config_knobs.cpp", "")
    struct = re.search(r"struct Config \{(.*?)\n\};", strip(header), re.S)
    for name in re.findall(r"(?m)^\s+[\w:<>]+ (\w+)\b[^()]*;", struct.group(1) if struct else ""):
        if f"&Config::{name}>" not in table:
            yield f"engine/core/config.h:1: Config::{name} has no row in config_knobs.cpp"


def comment_lines(path, text):
    """(line number, column, comment) of each line with a comment; literals hold none."""
    if path.endswith((".md", ".json", ".jinja")):
        return
    has_slashes = is_cpp(path) or path.endswith(".proto")
    code = strip(text, comments=False) if has_slashes else text
    pattern = re.compile(r"//" if has_slashes else r"(?<!\S)#+(?=\s)")
    for number, (line, source) in enumerate(zip(code.split("\n"), text.split("\n")), 1):
        match = pattern.search(line)
        if match:
            yield number, match.start(), source[match.start():]


def comment_beginnings(tree):
    """A block goes on in the next line if its comment has the same column and the line for itself."""
    found = []
    for path in tree:
        lines = tree[path].split("\n")
        last = None
        for number, column, comment in comment_lines(path, tree[path]):
            goes_on = last == (number - 1, column) and not lines[number - 1][:column].strip()
            last = (number, column)
            if not goes_on and BEGINNINGS.match(comment):
                found.append(f"{path}:{number}: a comment with its subject missing: {comment}")
    if len(found) > MAX_BEGINNINGS:
        yield from found


def vague_words(tree):
    """Comments of the product name who acts, and say after, before or instead of what."""
    found = [f"{path}:{line}: a vague word, of which {MAX_VAGUE_WORDS} may be left: {comment}"
             for path in tree if is_product(path) and is_cpp(path)
             for line, _, comment in comment_lines(path, tree[path]) if VAGUE_WORDS.search(comment)]
    yield from found if len(found) > MAX_VAGUE_WORDS else ()


def coroutines(tree):
    """g++ 12 miscompiles these in an expression with co_await, without a warning."""
    for path in filter(is_cpp, tree):
        code = strip(tree[path])
        for match in re.finditer(r"\bco_await\b", code):
            end = code.find(";", match.end())
            statement = code[code.rfind(";", 0, match.start()) + 1:end]
            statement = statement[max(statement.rfind("\n\n"), 0):]
            where = f"{path}:{line_of(code, end)}: co_await with"
            if re.search(r"[(,]\s*(\w[\w:<>]*\s*)?\{", statement):
                yield f"{where} a braced temporary"
            if re.search(r"[^?]\?[^?:]*:[^:]", statement):
                yield f"{where} ?:"
            if re.search(r"\[[^\]\s][^\]]*\]\s*(\([^)]*\))?\s*(mutable\s*)?(->[^{]*)?\{", statement):
                yield f"{where} a capturing temporary lambda"


RULES = (include_edges, include_cycles, room_order, unit_cycles, file_length, line_length, function_length, device_conditions,
         banned_tokens, cuda_sources, heavy_headers, unfinished, machine_paths, licence_line, header_comment,
         header_names, type_names, dead_files, readmes, links, knob_rows, comment_beginnings, vague_words, coroutines)

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
LONG_BODY = "  f();\n" * 69
SELF_TESTS = {  # rule -> trees that it must flag
    include_edges: [{"quant/a.h": '#include "kernels/b.h"', "kernels/b.h": ""},
                    {"server/a.cpp": '#include "engine/model.h"', "engine/model.h": ""},
                    {"kvcache/pool.h": '#include "kernels/b.h"', "kernels/b.h": ""},
                    {"scheduler/a.h": '#include "kvcache/store/a.h"', "kvcache/store/a.h": ""},
                    {"kvcache/a.h": '#include "kvcache/transport/a.h"', "kvcache/transport/a.h": ""},
                    {"kvcache/transport/a.h": '#include "kvcache/kv_key.h"', "kvcache/kv_key.h": ""},
                    {"kvcache/store/a.h": '#include "kvcache/transport/a.h"', "kvcache/transport/a.h": ""},
                    {"engine/run/a.h": '#include "scheduler/scheduler.h"', "scheduler/scheduler.h": ""},
                    {"engine/core/a.h": '#include "engine/engine.h"', "engine/engine.h": ""},
                    {"engine/models/a.h": '#include "engine/run/b.h"', "engine/run/b.h": ""},
                    {"tests/a.cpp": '#include "../engine/engine.h"', "engine/engine.h": ""}],
    include_cycles: [{"a/x.h": '#include "a/y.h"', "a/y.h": '#include "a/x.h"'}],
    room_order: [{"engine/core/a.h": '#include "engine/tokenizer/b.h"', "engine/tokenizer/b.h": ""},
                 {"engine/sampling/grammar/a.cpp": '#include "engine/sampling/b.h"', "engine/sampling/b.h": ""},
                 {"engine/spec/a.h": '#include "engine/request.h"', "engine/request.h": ""},
                 {"engine/run/a.h": '#include "engine/loop/b.h"', "engine/loop/b.h": ""},
                 {"engine/attic/a.h": ""}, {"server/attic/a.h": ""}, {"server/http/a.cpp": '#include "server/front/b.h"', "server/front/b.h": ""},
                 {"server/front/a.h": '#include "server/api/b.h"', "server/api/b.h": ""},
                 {"server/api/a.cpp": '#include "server/b.h"', "server/b.h": ""}],
    unit_cycles: [{"engine/a.h": "", "engine/a.cpp": '#include "engine/b.h"', "engine/b.h": "",
                   "engine/b.cpp": '#include "engine/a.h"'}],
    file_length: [{"engine/a.cpp": "\n" * 601}, {"engine/tokenizer/text/unicode_data.cpp": "\n"}],
    type_names: [{"server/a.h": "namespace a {\nstruct B {\n};\n}", "server/b.h": "namespace a {\nclass B final : C {\n};\n}"}],
    line_length: [{"engine/a.cpp": "// " + "x " * 50}, {"engine/a.h": "int " + "x, " * 33 + "y;"}],
    function_length: [{"engine/a.cpp": "namespace a {\nint f(int x) {\n" + LONG_BODY + "}\n}\n"},
                      {"engine/a.h": "class A : B {\n A() : x_(1) {\n" + LONG_BODY + "}\n};\n"},
                      {"engine/a.cpp": "Knobs make_limit_knobs() {\n" + LONG_BODY + "}\n"},
                      {"engine/core/config_knobs.cpp": "Knobs make_limit_knobs() {\n}\n"}],
    device_conditions: [{"engine/a.cpp": "#ifdef SLUICE_CUDA\n"}, {"server/a.h": "#if defined(__AVX2__)"}],
    banned_tokens: [{"engine/a.cpp": "int f() { std::cout << 1; }"}, {"engine/a.cpp": "printf(x);"},
                    {"engine/a.cpp": "std::regex r;"}, {"quant/a.cpp": "x << std::endl;"},
                    {"kernels/a.cpp": "int x = rand();"}, {"server/a.cpp": "assert(x);"}, {"server/a.cpp": "sleep_for(x);"},
                    {"kvcache/a.h": "std::shared_ptr<int> x;"}, {"kernels/a.h": "if (f == WeightFormat::kQ4_0) {}"},
                    {"tests/core/a.cpp": "auto p = testing::TempDir();"}],
    cuda_sources: [{"kernels/cuda/a.cu": 'asm volatile("bar.sync 0;");'}, {"kernels/cuda/a.cu": "f<<<1, 32>>>(x);"},
                   {"kernels/cuda/a.h": "__shared__ float x[3];"}, {"tests/a.cu": "#include <cuda_bf16.h>"},
                   {"kernels/cuda/a.cu": "y = __expf(x);"}, {"kernels/cuda/a.cu": "atomicAdd(p, x);"}, {"kernels/cuda/a.h": '#include "tests/support/simt/simt.h"'},
                   {"kernels/cuda/a.cu": "__global__ void __launch_bounds__(128) f() {}"},
                   {"kernels/cuda/a.cu": "uint32_t lanes = __activemask();"}],
    heavy_headers: [{"server/a.h": "#include <nlohmann/json.hpp>"}],
    unfinished: [{"engine/a.cpp": "// TO" + "DO: later"}],
    machine_paths: [{"deploy/a.sh": "cat /root/x"}, {"README.md": "see /work/x"}],
    licence_line: [{"engine/a.cpp": "int x;"}, {"tests/a.sh": "#!/bin/sh\necho"}],
    header_comment: [{"engine/a.h": SPDX + "#pragma once\n"}, {"engine/a.h": SPDX + "// What.\n"}],
    header_names: [{"kvcache/a.h": "", "server/grpc/a.h": ""}],
    dead_files: [{"engine/a.cpp": "", "engine/CMakeLists.txt": "bba.cpp a.cpp.in"}],
    readmes: [{"engine/a.h": ""}, {"quant/README.md": "a\n" * 151}, {"README.md": "a " * 901}],
    links: [{"README.md": "[x](engine/nothing.md)"}],
    knob_rows: [{"engine/core/config.h": "struct Config {\n  int32_t port = 1;  // x\n};",
                 "engine/core/config_knobs.cpp": "&Config::porter>"}],
    comment_beginnings: [{"engine/a.h": "// Of a worker.\n// Whole.\nint x;\n" * 16},
                         {"tests/a.py": "x = 1  # Until then.\n" * 16},
                         {"a/a.cpp": "int a;  // As b.\n        // More.\n" * 10,
                          "a/b.yaml": "# The same.\na: b\n" * 6}],
    vague_words: [{"engine/a.h": "int x;  // Nobody's.\n" * 51}, {"quant/a.cu": "// Is told.\nint y;  // behind x\n" * 26}],
    coroutines: [{"server/a.cpp": "void f() { co_await g(Args{1}); }"}, {"server/a.cpp": "x = b ? co_await f() : co_await g();"},
                 {"server/a.cpp": "co_await run([t] { return t; });"}],
}
# Nothing here is wrong; a rule that flags it is.
GOOD = {
    "engine/core/config.h": SPDX + "// Knobs.\n#pragma once\nstruct Config {\n  int32_t port = 1;\n};\n",
    "engine/core/config_knobs.cpp": SPDX + '#include "engine/core/config.h"\n// std::cout << rand()\n'
                              'const char* t = "std::endl assert(";\nrow<&Config::port>(t);\n'
                              "constexpr int kTable[] = {f(1),\n" + "2,\n" * 120 + "};\n"
                              "Knobs make_limit_knobs() {\n" + LONG_BODY + "}\n"
                              "static_assert(sizeof(int) == 4); x.rand(); my_printf(t);\n"
                              'f(R"(' + "text " * 30 + ')");\n',
    "kernels/cuda/a.cu": SPDX + "// asm and <<< are words\n__global__ void __launch_bounds__(kThreads, 1) "
                         "f(float x) {\n  y = exp_of(x);\n}\n",
    "kernels/CMakeLists.txt": "# SPDX-License-Identifier: Apache-2.0\ncuda/a.cu\n",
    "kernels/README.md": "\n",
    "server/a.cpp": SPDX + "Task f() { auto r = co_await g(x, 1); if (r) { h(); } }\n",
    "engine/CMakeLists.txt": "# SPDX-License-Identifier: Apache-2.0\ncore/config_knobs.cpp\n",
    "server/CMakeLists.txt": "# SPDX-License-Identifier: Apache-2.0\nsources(a.cpp b.cpp)\n" + "# behind\n" * 51,
    "engine/README.md": "[knobs](core/config.h) [up](../server) [web](https://example.org)\n",
    "server/b.cpp": SPDX + "// Words:\n// Of two lines.\nint x;\n" * 16 + "int behind;\n" * 51,
    "server/README.md": "~/.cache/work/x and ${HOME}/work/ are no machine's\n",
}


def read_tree():
    tree = {}
    for folder, names, files in os.walk(ROOT):
        names[:] = sorted(n for n in names if not n.startswith("build")
                          and n not in ("__pycache__", ".git", ".cache", ".venv"))
        for name in sorted(files):
            path = os.path.relpath(os.path.join(folder, name), ROOT).replace(os.sep, "/")
            is_data = "/golden/" in path or "/corpus/" in path
            if name.endswith(CODE if is_data else TEXT):
                with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                    tree[path] = file.read()
    return tree


def main():
    complaints = []
    for rule in RULES:
        for number, bad in enumerate(SELF_TESTS[rule]):
            if not list(rule(bad)):
                complaints.append(f"{SELF}:1: {rule.__name__} misses its bad snippet {number}")
        complaints += [f"{SELF}:1: {rule.__name__} flags good code: {c}" for c in rule(GOOD)]
    tree = read_tree()
    if len(tree) < 20:
        complaints.append(f"{SELF}:1: only {len(tree)} files found under {ROOT}")
    own = tree.pop(SELF)
    complaints += [c for rule in (file_length, licence_line) for c in rule({SELF: own})]
    complaints += [complaint for rule in RULES for complaint in rule(tree)]
    for complaint in complaints:
        print(complaint)
    print(f"tidy: {len(tree)} files, {len(RULES)} rules, {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
