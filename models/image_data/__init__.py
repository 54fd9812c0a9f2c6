"""Published image data, read from their files: MNIST, Fashion-MNIST, CIFAR-10, and scikit-learn's bundled digits."""

from hierfl.models.image_data.image_sets import IMAGE_SETS, load_images

__all__ = ["IMAGE_SETS", "load_images"]
