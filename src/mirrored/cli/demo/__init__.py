"""`mirrored demo`: trains a convnet on handwritten digits with several replicas."""
