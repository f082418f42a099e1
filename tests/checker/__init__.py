"""An independent checker of the rank map.

It imports nothing of the product.  Three witnesses that do not know of each other are asked: Ray's tables (in the head
pod), Kubernetes' pods, and each rank process, which wrote down what it sees of itself.  Every entry of the rank map in
a CR's status is compared with all three.
"""
