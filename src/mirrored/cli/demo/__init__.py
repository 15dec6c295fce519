"""The command `mirrored demo`: trains a small network on handwritten digits with several replicas."""
