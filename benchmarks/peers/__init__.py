"""What runs in the environments of other libraries."""
