"""Runs public programs that use `tf.distribute.MirroredStrategy` on `mirrored.tf`; the programs are not part of it."""
