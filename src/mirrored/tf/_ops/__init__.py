"""The operations of `mirrored.tf`: arrays, mathematics, neural networks, images, signals, random numbers."""
