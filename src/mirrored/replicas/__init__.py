"""Replicas: where they live, what surrounds them, how they meet, and the proof that what is mirrored stays equal."""
