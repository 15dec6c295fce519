"""The networks, each written once over the operations that every contender provides."""
