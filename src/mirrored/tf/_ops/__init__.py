"""Operations: tensors, mathematics, neural networks, images, linear algebra, signals, random numbers."""
