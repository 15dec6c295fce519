"""The command `mirrored new`: creates a small project that trains, has tests, and runs on several workers."""
