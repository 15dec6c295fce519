"""Type stub of `tf.compat.v1.io`, written by tools/tf_stubs.py."""

from mirrored.tf.compat.v1.io import gfile as gfile
from mirrored.tf.io import FixedLenFeature as FixedLenFeature
from mirrored.tf.io import FixedLenSequenceFeature as FixedLenSequenceFeature
from mirrored.tf.io import TFRecordOptions as TFRecordOptions
from mirrored.tf.io import TFRecordWriter as TFRecordWriter
from mirrored.tf.io import decode_and_crop_jpeg as decode_and_crop_jpeg
from mirrored.tf.io import decode_base64 as decode_base64
from mirrored.tf.io import decode_bmp as decode_bmp
from mirrored.tf.io import decode_gif as decode_gif
from mirrored.tf.io import decode_image as decode_image
from mirrored.tf.io import decode_jpeg as decode_jpeg
from mirrored.tf.io import decode_png as decode_png
from mirrored.tf.io import encode_base64 as encode_base64
from mirrored.tf.io import encode_jpeg as encode_jpeg
from mirrored.tf.io import encode_png as encode_png
from mirrored.tf.io import extract_jpeg_shape as extract_jpeg_shape
from mirrored.tf.io import is_jpeg as is_jpeg
from mirrored.tf.io import parse_tensor as parse_tensor
from mirrored.tf.io import read_file as read_file
from mirrored.tf.io import serialize_tensor as serialize_tensor
from mirrored.tf.io import write_file as write_file
