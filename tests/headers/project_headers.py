"""The project's headers, what they include, and two compilers' runs at a time; shared by the checks of headers and budgets."""
import concurrent.futures
import functools
import pathlib
import re
import subprocess

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def headers(root, folders=("include", "policies", "vendors")):
    """Paths relative to root, sorted."""
    return sorted(p.relative_to(root) for folder in folders for p in (root / folder).rglob("*.hpp"))


@functools.cache
def includes(root, path):
    """The names in a file's #include lines, comments skipped."""
    text = re.sub(r"/\*.*?\*/", "", (root / path).read_text(), flags=re.DOTALL)
    return tuple(INCLUDE.findall(text))


def resolve(root, name):
    """The project's file that an #include names, relative to root, or None for a file of others."""
    for candidate in (pathlib.Path(name), pathlib.Path("include") / name):
        if (root / candidate).is_file():
            return candidate
    return None


@functools.cache
def reaches(root, path, name):
    """Whether a file includes `name`, directly or through the project's files."""
    seen, open_files = set(), [path]
    while open_files:
        for included in includes(root, open_files.pop()):
            if included == name:
                return True
            found = resolve(root, included)
            if found and found not in seen:
                seen.add(found)
                open_files.append(found)
    return False


def run(command, text=None):
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def two_at_a_time(function, items):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(function, items))


def compile_flags(settings, root):
    """The build's include paths and -D definitions: its own folders as -I, all others as system headers, but for /usr/include,
    which the compiler knows."""
    definitions = [s for s in settings if s.startswith("-D") and s != "-D"]
    folders = [s for s in settings if not s.startswith("-D")]
    own = [d for d in folders if pathlib.Path(d).is_relative_to(root) and "site-packages" not in d]
    others = [d for d in folders if d not in own and d != "/usr/include"]
    return ["-std=c++20", "-fopenmp"] + definitions + [f"-I{d}" for d in own] + [f"-isystem{d}" for d in others]
