"""Loads the secret that the processes of a job share, from an environment variable or a file."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mirrored import settings
from mirrored.errors import ArgumentError

_MOST_BYTES: Final = 4096


def load_secret(environment: Mapping[str, str] | None = None) -> bytes:
    """Returns the secret with which the job's processes authenticate each other; generates a secret if none is set.

    ``MIRRORED_SECRET_FILE`` names a file with the secret; ``MIRRORED_SECRET`` contains it. Without either, the secret
    is the content of ``mirrored/secret`` in the user's configuration folder (``XDG_CONFIG_HOME``, by default
    ``~/.config``), a file that only this user can read. The file is generated if it does not exist: on one machine,
    and on machines that share the home folder, nothing needs to be configured.

    Args:
        environment: Read instead of `os.environ`.

    Raises:
        ArgumentError: The secret is too short, its file cannot be read, or other users can read it.
    """
    environment = os.environ if environment is None else environment
    given = settings.SECRET_FILE.read(environment)
    if given is not None:
        return _checked(_read(Path(given), settings.SECRET_FILE.name), f"{settings.SECRET_FILE.name}={given}")
    text = settings.SECRET.read(environment)
    if text is not None:
        return os.fsencode(text)
    path = _default_file(environment)
    with contextlib.suppress(FileExistsError):
        _generate(path)
    return _checked(_read(path, str(path)), str(path))


def given_secret() -> bytes:
    """Returns the secret that the user has configured for the job; empty bytes if none is configured.

    Raises:
        ArgumentError: As for `load_secret`.
    """
    return load_secret() if settings.SECRET.is_set() or settings.SECRET_FILE.is_set() else b""


def _default_file(environment: Mapping[str, str]) -> Path:
    home = environment.get("HOME") or os.path.expanduser("~")
    return Path(environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")) / "mirrored" / "secret"


def _generate(path: Path) -> None:
    """Creates the secret's file; if two processes do so at once, both use the file that was created first."""
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(f"{path.name}-{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, secrets.token_hex(32).encode() + b"\n")
            os.fsync(descriptor)
            os.link(draft, path)
        finally:
            os.close(descriptor)
            draft.unlink()
    except FileExistsError:
        raise
    except OSError as error:
        raise _error(
            str(path),
            f"a secret cannot be stored there ({error.strerror})",
            f"set {settings.SECRET.name} or {settings.SECRET_FILE.name}",
        ) from error


def _read(path: Path, called: str) -> bytes:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(_MOST_BYTES).strip()
    except OSError as error:
        raise _error(
            called, f"{path} cannot be read ({error.strerror})", "pass a file that this user can read"
        ) from error
    if mode & 0o007:
        raise _error(called, f"{path} has the mode {mode:o}: every user can use it", f"run chmod 600 {path}")
    return content


def _checked(secret: bytes, called: str) -> bytes:
    if len(secret) < settings.LEAST_SECRET_BYTES:
        raise _error(called, f"the secret has {len(secret)} bytes", "generate one: openssl rand -hex 32")
    return secret


def _error(called: str, found: str, remedy: str) -> ArgumentError:
    return ArgumentError(
        called,
        found=found,
        rule=f"the processes of a job must share a secret of {settings.LEAST_SECRET_BYTES} bytes or more that no other "
        "user can read",
        remedy=remedy,
    )
