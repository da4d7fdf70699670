//! Speaks the `TCPStore` protocol of `torch.distributed`.
