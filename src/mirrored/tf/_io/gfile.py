"""`tf.io.gfile`: functions for local files and folders under TensorFlow's names."""

from __future__ import annotations

import functools
import glob as globbing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

from mirrored.tf._errors import AlreadyExistsError, NotFoundError, OpError

PathLike: TypeAlias = str | os.PathLike[str]
_F = TypeVar("_F", bound=Callable[..., Any])


def _raising(function: _F) -> _F:
    """Wraps a function to raise TensorFlow's subclasses of FileNotFoundError and FileExistsError."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except OpError:  # also an error of Python's class
            raise
        except FileNotFoundError as error:
            raise _op_error(NotFoundError, error, "No such file or directory") from error
        except FileExistsError as error:
            raise _op_error(AlreadyExistsError, error, "file already exists") from error

    return run  # type: ignore[return-value]


def _op_error(kind: type[OpError], error: OSError, reason: str) -> OpError:
    return kind(None, None, f"{error.filename}; {reason}")


@_raising
def open_file(name: PathLike, mode: str = "r") -> IO[Any]:
    """Opens a local file like Python's `open`; text is UTF-8, and line endings are not converted.

    Raises:
        NotFoundError: The file does not exist.
    """
    text: dict[str, str] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    return Path(name).open(mode, **text)  # type: ignore[call-overload,no-any-return]


def exists(path: PathLike) -> bool:
    """Returns whether a file or folder exists."""
    return Path(path).exists()


def isdir(path: PathLike) -> bool:
    """Returns whether a path is a folder."""
    return Path(path).is_dir()


def makedirs(path: PathLike) -> None:
    """Creates a folder and its missing parents; does nothing if the folder exists."""
    Path(path).mkdir(parents=True, exist_ok=True)


@_raising
def mkdir(path: PathLike) -> None:
    """Creates a folder whose parent exists."""
    Path(path).mkdir()


@_raising
def listdir(path: PathLike) -> list[str]:
    """Returns the names of the files and folders in a folder."""
    return os.listdir(path)


def glob(pattern: PathLike | Sequence[PathLike]) -> list[str]:
    """Returns the paths that match one or several patterns, such as ``"*.txt"``."""
    patterns = pattern if isinstance(pattern, (list, tuple)) else [pattern]
    return sorted(path for one in patterns for path in globbing.glob(str(one)))


@_raising
def copy(src: PathLike, dst: PathLike, overwrite: bool = False) -> None:
    """Copies a file to another path.

    Raises:
        AlreadyExistsError: The target exists, and `overwrite` is False.
    """
    _check_free(dst, overwrite)
    shutil.copyfile(src, dst)


@_raising
def rename(src: PathLike, dst: PathLike, overwrite: bool = False) -> None:
    """Renames a file or folder.

    Raises:
        AlreadyExistsError: The target exists, and `overwrite` is False.
    """
    _check_free(dst, overwrite)
    os.replace(src, dst)


def _check_free(path: PathLike, overwrite: bool) -> None:
    if not overwrite and Path(path).exists():
        raise AlreadyExistsError(None, None, f"file already exists: {path} (overwrite=True replaces it)")


@_raising
def remove(path: PathLike) -> None:
    """Deletes a file (`tf.io.gfile.remove`)."""
    Path(path).unlink()


@_raising
def rmtree(path: PathLike) -> None:
    """Deletes a folder and its contents."""
    shutil.rmtree(path)


@_raising
def stat(path: PathLike) -> os.stat_result:
    """Returns the size, times and other statistics of a file."""
    return Path(path).stat()


def walk(
    top: PathLike, topdown: bool = True, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields each folder of a folder tree with its subfolders and files, like `os.walk`."""
    return os.walk(top, topdown, onerror)


def join(path: PathLike, *paths: PathLike) -> str:
    """Joins path components like `os.path.join`."""
    return str(os.path.join(path, *paths))


NAMES: dict[str, Any] = {
    "io.gfile.GFile": open_file,
    "io.gfile.copy": copy,
    "io.gfile.exists": exists,
    "io.gfile.glob": glob,
    "io.gfile.isdir": isdir,
    "io.gfile.join": join,
    "io.gfile.listdir": listdir,
    "io.gfile.makedirs": makedirs,
    "io.gfile.mkdir": mkdir,
    "io.gfile.remove": remove,
    "io.gfile.rename": rename,
    "io.gfile.rmtree": rmtree,
    "io.gfile.stat": stat,
    "io.gfile.walk": walk,
}
