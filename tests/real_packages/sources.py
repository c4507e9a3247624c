# SPDX-License-Identifier: Apache-2.0
"""Loads single modules of packages that cannot be imported as a whole without a GPU."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import sys
import types
from typing import Any


def version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def file_of(relative: str) -> str:
    """The path of a file of an installed package."""
    for folder in sys.path:
        path = os.path.join(folder, relative)
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(relative)


def stub(name: str, **members: Any) -> types.ModuleType:
    """Puts a module of that name, with these members, in place of the real one."""
    module = types.ModuleType(name)
    module.__path__ = []
    for key, value in members.items():
        setattr(module, key, value)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)
    return module


def load(relative: str, name: str) -> Any:
    """The module in that file, without the packages around it."""
    spec = importlib.util.spec_from_file_location(name, file_of(relative))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def class_alone(relative: str, name: str, space: dict[str, Any], only: str | None = None) -> Any:
    """A class of that file, or one method of it, which finds its globals in `space`."""
    with open(file_of(relative)) as file:
        tree = ast.parse(file.read())
    nodes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    if only:
        nodes = [n for n in nodes[0].body if isinstance(n, ast.FunctionDef) and n.name == only]
    exec(compile(ast.Module(nodes, []), relative, "exec"), space)
    return space[only or name]
