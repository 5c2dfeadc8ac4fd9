"""`mosaic open-tensorboard`: runs in TensorBoard, under readable names."""
