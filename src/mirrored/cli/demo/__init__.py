"""`mirrored demo`: a convnet learns handwritten digits on several replicas. Each file is a part of it."""
