"""Authenticated network connections between the processes of a job, and the job's shared secret."""

from mirrored.transport.channel import Channel as Channel
from mirrored.transport.channel import RefusedError as RefusedError
from mirrored.transport.interfaces import interface_of as interface_of
from mirrored.transport.secret import given_secret as given_secret
from mirrored.transport.secret import load_secret as load_secret
from mirrored.transport.server import Server as Server

__all__ = ["Channel", "RefusedError", "Server", "given_secret", "interface_of", "load_secret"]
