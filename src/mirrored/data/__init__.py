"""Input: datasets over Grain, and their distribution over replicas."""
