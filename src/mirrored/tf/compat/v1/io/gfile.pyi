"""Type stub of `tf.compat.v1.io.gfile`, written by tools/tf_stubs.py."""

from mirrored.tf.io.gfile import GFile as GFile
from mirrored.tf.io.gfile import copy as copy
from mirrored.tf.io.gfile import exists as exists
from mirrored.tf.io.gfile import glob as glob
from mirrored.tf.io.gfile import isdir as isdir
from mirrored.tf.io.gfile import join as join
from mirrored.tf.io.gfile import listdir as listdir
from mirrored.tf.io.gfile import makedirs as makedirs
from mirrored.tf.io.gfile import mkdir as mkdir
from mirrored.tf.io.gfile import remove as remove
from mirrored.tf.io.gfile import rename as rename
from mirrored.tf.io.gfile import rmtree as rmtree
from mirrored.tf.io.gfile import stat as stat
from mirrored.tf.io.gfile import walk as walk
