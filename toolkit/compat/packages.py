"""Rules about what is installed beside what."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from packaging.utils import canonicalize_name

from toolkit.compat.model import SERVER_PACKAGES, Case, EnvironmentView, Hit, Role
from toolkit.environments import requirements
from toolkit.environments.model import Problem
from toolkit.facts.model import nvidia_build, version, within

# Problems that leave no usable environment; the others are untidy.
BROKEN = {
    "interpreter_missing": "its Python interpreter is missing",
    "base_interpreter_missing": "the Python it was made from is gone",
    "interpreter_not_a_program": "its Python interpreter is no program",
    "interpreter_too_old": "its interpreter is a Python 2",
    "venv_config_missing": "its pyvenv.cfg is gone, so Python takes the packages of its base instead",
    "nothing_installed": "it holds neither a Python nor a package",
    "site_folder_missing": "it has no folder of packages",
}
UNTIDY = {
    "metadata_broken": "metadata cannot be read",
    "requirement_invalid": "a requirement cannot be read",
    "duplicate_metadata": "metadata of two versions of one package",
    "shadowed_distribution": "a package hides another version of itself",
    "uninstall_leftover": "leftovers of an interrupted uninstall",
    "pth_folder_missing": "a .pth file names a folder that is gone",
    "editable_missing": "the source of an editable install is gone",
    "torch_version_differs": "torch's files and its metadata are of two versions",
}
# A server package that decides what its environment must hold; conflicts of other packages are told, and stop nothing.
DECIDING = (*SERVER_PACKAGES, "torch", "flash-attn", "flash-attn-4", "transformers")


def environments(case: Case) -> Iterator[Hit]:
    """What is wrong with an environment as a whole."""
    for view in case.environments.values():
        if view.image and not view.packages:
            yield Hit("image-not-read", view.name, view.name, {"image": view.image, "name": view.name})
        elif not view.read:
            yield Hit("environment-not-read", view.name, view.name)
        for problem in view.problems:
            if problem.kind == "interpreter_is_script":
                script = view.executable or problem.path
                yield Hit("environment-opaque", problem.subject, view.name, {"script": script})
            elif problem.kind != "pth_import":  # every editable install has one
                yield _problem(view, problem)


def _problem(view: EnvironmentView, problem: Problem) -> Hit:
    text = BROKEN.get(problem.kind) or UNTIDY.get(problem.kind, problem.kind.replace("_", " "))
    values = {"problem": f"{text} ({problem.subject})", "detail": problem.detail or str(problem.path or text)}
    rule = "environment-broken" if problem.kind in BROKEN else "environment-untidy"
    return Hit(rule, problem.subject, view.name, values, (str(problem.path),) if problem.path else ())


def conflicts(case: Case) -> Iterator[Hit]:
    """Requirements that an environment does not meet, as ``pip check`` finds them."""
    for view in case.environments.values():
        for conflict in view.conflicts:
            found = f"found {conflict.name} {conflict.found}" if conflict.found else "which is not installed"
            values = {"required_by": conflict.required_by, "requirement": conflict.requirement, "found": found}
            decides = conflict.required_by in DECIDING
            subject = conflict.required_by
            yield Hit("dependency-conflict", subject, view.name, values, severity=None if decides else "warning")


def prerelease(case: Case) -> Iterator[Hit]:
    """A torch for which nobody publishes wheels."""
    for view in case.environments.values():
        torch = view.packages.get("torch") or view.torch
        if torch and is_prerelease(torch):
            package = view.flash_packages[0] if view.flash_packages else "flash-attn"
            yield Hit("torch-prerelease", "torch", view.name, {"torch": torch, "package": package})


def is_prerelease(torch: str) -> bool:
    """Whether a torch is a nightly or a build of NVIDIA's containers."""
    known = version(torch)
    return nvidia_build(torch) is not None or bool(known and known.is_prerelease)


def shared_library_path(case: Case) -> Iterator[Hit]:
    """One LD_LIBRARY_PATH, inherited by roles of different environments."""
    folders = case.surroundings.environ.get("LD_LIBRARY_PATH")
    heirs = [role for role in case.roles if folders and _inherits(role, case, folders)]
    if len({role.environment for role in heirs}) > 1:
        services = ", ".join(role.name for role in heirs)
        yield Hit("library-path-shared", "LD_LIBRARY_PATH", None, {"services": services}, (folders or "",))


def _inherits(role: Role, case: Case, folders: str) -> bool:
    own = role.service.env.get("LD_LIBRARY_PATH") if role.service else None
    view = case.environments.get(role.environment)
    return own is None and (view is None or view.library_path in {None, folders})


def roles_apart(case: Case) -> Iterator[Hit]:
    """Pairs of environments whose servers' requirements exclude each other."""
    for one, other in itertools.combinations(case.environments.values(), 2):
        found = clashes(one, other)
        if found:
            subject = f"{one.name} and {other.name}"
            yield Hit("roles-cannot-share", subject, None, {"clash": found[0]}, tuple(found))


def clashes(one: EnvironmentView, other: EnvironmentView) -> list[str]:
    """Requirements of the servers of two environments that no one version of a package can meet."""
    wanted, theirs = _wanted(one), _wanted(other)
    found = []
    for name in sorted(wanted.keys() & theirs.keys()):
        candidates = {view.packages.get(name) for view in (one, other)} - {None}
        both = [*wanted[name], *theirs[name]]
        if candidates and not any(_meets(candidate, both) for candidate in candidates):
            found.append(f"{_told(wanted[name])} against {_told(theirs[name])}")
    return found


def _wanted(view: EnvironmentView) -> Mapping[str, list[tuple[str, str, str]]]:
    """Ranges that the servers of an environment ask for: (who, package, range) by package."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for server in (*SERVER_PACKAGES, *view.flash_packages):
        for text in view.requires.get(server, ()):
            requirement = requirements.parse(text)
            if requirement and str(requirement.specifier) and requirement.marker is None:
                name = str(canonicalize_name(requirement.name))
                found.setdefault(name, []).append((server, name, str(requirement.specifier)))
    return found


def _meets(candidate: str | None, wanted: list[tuple[str, str, str]]) -> bool:
    return all(within(candidate, text) is not False for _, _, text in wanted)


def _told(wanted: list[tuple[str, str, str]]) -> str:
    return ", ".join(f"{who} wants {name}{text}" for who, name, text in wanted)


RULES = {
    "environments": environments,
    "dependency-conflict": conflicts,
    "torch-prerelease": prerelease,
    "library-path-shared": shared_library_path,
    "roles-cannot-share": roles_apart,
}
