"""Type stub of `tf.compat.v1.gfile`, written by tools/tf_stubs.py."""

from mirrored.tf.io.gfile import GFile as GFile
from mirrored.tf.io.gfile import GFile as _GFile
from mirrored.tf.io.gfile import copy, exists, glob, isdir, listdir, makedirs, mkdir, remove, rename, rmtree, stat, walk

Copy = copy
DeleteRecursively = rmtree
Exists = exists
FastGFile = _GFile
Glob = glob
IsDirectory = isdir
ListDirectory = listdir
MakeDirs = makedirs
MkDir = mkdir
Open = _GFile
Remove = remove
Rename = rename
Stat = stat
Walk = walk
